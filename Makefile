# Thin on purpose: the logic is in xtask/. ./xtask/cargo is cargo, installed first where there is
# none new enough; everything else that is missing is installed by `setup`.

CARGO := ./xtask/cargo
XTASK := $(CARGO) run --quiet --package xtask --

.PHONY: build demo test interop bench deb setup fmt clean

build: setup-quiet
	$(CARGO) build --release --package lockgate --package lockgated

demo: setup-quiet
	$(XTASK) demo

test: setup-quiet
	$(XTASK) test

# The part of it against other implementations: scapy and tshark.
interop: setup-quiet
	$(XTASK) interop

bench: setup-quiet
	$(XTASK) bench

deb: setup-quiet
	$(XTASK) deb

setup:
	$(XTASK) setup

.PHONY: setup-quiet
setup-quiet:
	$(XTASK) setup --quiet

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
