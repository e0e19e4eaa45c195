// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What the kernel tier is compared with: addresses every overlay packet to one
 * endpoint, which is a constant, and sends it on. The same bytes are written as by
 * overlay.bpf.c; nothing is looked up, and nothing is checked but what the verifier
 * wants.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lockgate.h"

/* Link, IP, UDP, overlay, and the tenant's link header. */
#define BYTES (14 + 20 + 8 + 8 + 14)

const volatile struct lockgate_constant_options options = {};

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} out SEC(".maps");

static __always_inline void copy(__u8 *to, const volatile __u8 *from)
{
	*(__u32 *)to = *(const volatile __u32 *)from;
	*(__u16 *)(to + 4) = *(const volatile __u16 *)(from + 4);
}

SEC("xdp")
int lockgate_constant(struct xdp_md *ctx)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	__u8 *ip = data + ETH_HLEN;
	__u32 source, host = options.host;
	__u64 sum;

	if (data + BYTES > end)
		return XDP_ABORTED;
	source = *(__u32 *)(ip + 12);
	sum = (__u16)~*(__u16 *)(ip + 10);
	sum += (__u16)~*(__u16 *)(ip + 8);
	ip[8]--;
	sum += *(__u16 *)(ip + 8);
	/* The destination becomes the source, which is why it adds and takes nothing. */
	sum += (__u32)~source;
	sum += host;
	for (int i = 0; i < 3; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	*(__u16 *)(ip + 10) = ~sum;
	*(__u32 *)(ip + 12) = *(__u32 *)(ip + 16);
	*(__u32 *)(ip + 16) = host;
	copy(data, options.destination);
	copy(data + 6, options.source);
	copy(data + BYTES - 14, options.mac);
	return bpf_redirect_map(&out, 0, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
