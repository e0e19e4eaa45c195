# Thin on purpose: the logic is in xtask/. ./xtask/cargo is cargo, installed first where there is
# none new enough; everything else that is missing is installed by `setup`.

CARGO := ./xtask/cargo
XTASK := $(CARGO) run --package xtask --

.PHONY: build demo test test-long interop bench deb image setup fmt clean

build: setup-demo
	$(CARGO) build --release --package lockgate --package lockgated \
		--package lockgate-bench --package lockgate-demo --package lockgate-emulated-card

# Two gateways. NAME=replay is the one that needs no privileges, NAME=acl shows security groups,
# NAME=overlay virtual networks, NAME=offload an emulated network card.
demo: setup-demo
	$(XTASK) demo $(NAME)

test: setup-quiet
	$(XTASK) test

# The hunts: hours of luck in minutes. One part: make test-long PART=crash. All: up to 90 minutes.
test-long: setup-quiet
	$(XTASK) test-long $(PART)

# Against other implementations: scapy and tshark.
interop: setup-quiet
	$(XTASK) interop

bench: setup-demo
	$(XTASK) bench

deb: setup-quiet
	$(XTASK) deb

# As root: the folder target/image, for `docker build`.
image: setup-quiet
	$(XTASK) image

setup:
	$(XTASK) setup

.PHONY: setup-quiet setup-demo
setup-quiet:
	$(XTASK) setup --quiet

# Less than the tests need: a first try waits for it.
setup-demo:
	$(XTASK) setup --demo

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
