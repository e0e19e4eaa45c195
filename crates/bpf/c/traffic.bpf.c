// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Traffic for benches: one program makes frames, the other counts and drops them.
 *
 * `lockgate_generate` is run by the process (bpf_prog_test_run with live frames);
 * what it answers XDP_TX for leaves by the netdev that the process names. Frames
 * are used again without being restored, so the whole header is written each time.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lockgate.h"

/* A flow's source port is FIRST + n, its destination port the complement: they add
 * nothing to a checksum. So destination ports are 0x8000 to 0xbfff.
 */
#define FIRST_SOURCE_PORT 0x4000
_Static_assert(FIRST_SOURCE_PORT + LOCKGATE_MAX_FLOWS == 0x8000, "destination ports");

const volatile struct lockgate_traffic_options options = {};

/* Frames made so far; one thread runs the program. */
static __u64 made;
/* The last number drawn. */
static __u32 drawn;

/* 0 -> what the sink dropped, per CPU; written here only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lockgate_received);
} received SEC(".maps");

SEC("xdp")
int lockgate_generate(struct xdp_md *ctx)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	__u32 ports_at = options.ports_at;
	__u16 source;

	if (data + LOCKGATE_HEADER_BYTES > end || ports_at > LOCKGATE_HEADER_BYTES - 4)
		return XDP_ABORTED;
	for (int i = 0; i < LOCKGATE_HEADER_BYTES; i += 4)
		*(__u32 *)(data + i) = *(const volatile __u32 *)(options.header + i);
	source = FIRST_SOURCE_PORT + (made++ & options.flow_mask);
	*(__u16 *)(data + ports_at) = bpf_htons(source);
	*(__u16 *)(data + ports_at + 2) = bpf_htons((__u16)~source);
	return XDP_TX;
}

/* As above, in overlay packets between endpoints that are drawn: the low words of the
 * inner addresses are complements, which add nothing to the inner checksum. Endpoints
 * of the second half have the bit behind the flows set.
 */
SEC("xdp")
int lockgate_generate_overlay(struct xdp_md *ctx)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	const __u32 inner = LOCKGATE_HEADER_BYTES + LOCKGATE_TENANT_BYTES - 12;
	__u16 number;

	if (data + LOCKGATE_HEADER_BYTES + LOCKGATE_TENANT_BYTES > end)
		return XDP_ABORTED;
	for (int i = 0; i < LOCKGATE_HEADER_BYTES; i += 4)
		*(__u32 *)(data + i) = *(const volatile __u32 *)(options.header + i);
	for (int i = 0; i < LOCKGATE_TENANT_BYTES; i += 2)
		*(__u16 *)(data + LOCKGATE_HEADER_BYTES + i) =
			*(const volatile __u16 *)(options.tenant + i);
	/* Numerical Recipes' generator; its high bits are the better ones. */
	drawn = drawn * 1664525 + 1013904223;
	number = (drawn >> 8) & options.flow_mask;
	if (drawn >> 24 < options.cold)
		number |= options.flow_mask + 1;
	*(__u16 *)(data + inner + 2) = bpf_htons((__u16)~number);
	*(__u16 *)(data + inner + 6) = bpf_htons(number);
	return XDP_TX;
}

/* Whether it is UDP to a port that the generator uses. */
static __always_inline bool is_generated(const __u8 *data, const __u8 *end)
{
	__u16 ethertype;
	__u8 protocol;
	__u8 port;

	if (data + LOCKGATE_HEADER_BYTES > end)
		return false;
	ethertype = bpf_ntohs(*(const __u16 *)(data + 12));
	if (ethertype == ETH_P_IP) {
		protocol = data[23];
		port = data[36];
	} else if (ethertype == ETH_P_IPV6) {
		protocol = data[20];
		port = data[56];
	} else {
		return false;
	}
	return protocol == IPPROTO_UDP && port >> 6 == 2;
}

SEC("xdp")
int lockgate_sink(struct xdp_md *ctx)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	struct lockgate_received *sums;
	__u32 key = 0;

	if (!is_generated(data, end))
		return XDP_PASS;
	sums = bpf_map_lookup_elem(&received, &key);
	if (sums) {
		sums->packets++;
		sums->bytes += end - data;
	}
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
