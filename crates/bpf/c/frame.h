/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the programs of a netdev share: its sockets and counters, how a frame is
 * read, and how it goes to a worker. Each program has its own copy of the code;
 * the process gives all of them the same maps.
 */
#ifndef LOCKGATE_FRAME_H
#define LOCKGATE_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Written by build.rs: see src/layout.rs. */
#include "lockgate.h"

const volatile struct lockgate_options options = {};

/* Queue -> AF_XDP socket; a worker's sockets are put in by the process. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, LOCKGATE_MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* 0 -> frames by what happened to them, per CPU; written here only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lockgate_counters);
} counters SEC(".maps");

/* XDP action -> the operator's program, which runs once that is decided and
 * returns the action or another one; empty unless he puts one in. It sees the
 * frame as it leaves. The layout is the one that xdpcap looks for.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, LOCKGATE_XDP_ACTIONS);
	__type(key, __u32);
	__type(value, __u32);
} after SEC(".maps");

/* Bytes of a frame that headers are looked for in. */
#define FRAME_MASK 0x3fff

/* What a frame is before it is IP. */
struct link {
	__u8 *network;
	__u32 length;
	__u16 ethertype; /* host byte order */
	__u16 vlan;
};

/* Of the packet, network byte order, not aligned. */
static __always_inline __u16 load16(const __u8 *at)
{
	return bpf_ntohs(*(const __u16 *)at);
}

static __always_inline __u32 load32_be(const __u8 *at)
{
	return *(const __u32 *)at;
}

static __always_inline bool same_station(const __u8 *a, const __u8 *b)
{
	return load32_be(a) == load32_be(b) && load16(a + 4) == load16(b + 4);
}

/* False: truncated, or tagged in a way that no port is. */
static __always_inline bool parse_link(__u8 *data, __u8 *end, struct link *link)
{
	bool stacked;
	__u16 id;

	link->vlan = LOCKGATE_VLAN_OTHER;
	if (data + ETH_HLEN > end)
		return false;
	link->ethertype = load16(data + 12);
	link->network = data + ETH_HLEN;
	link->length = ETH_HLEN;
	if (link->ethertype != ETH_P_8021Q && link->ethertype != ETH_P_8021AD) {
		link->vlan = LOCKGATE_VLAN_UNTAGGED;
		return true;
	}
	if (data + ETH_HLEN + 4 > end)
		return false;
	id = load16(data + ETH_HLEN) & 0x0fff;
	stacked = link->ethertype == ETH_P_8021AD;
	link->ethertype = load16(data + ETH_HLEN + 2);
	link->network = data + ETH_HLEN + 4;
	link->length = ETH_HLEN + 4;
	if (stacked || link->ethertype == ETH_P_8021Q || link->ethertype == ETH_P_8021AD)
		return false;
	link->vlan = id ? id : LOCKGATE_VLAN_UNTAGGED;
	return true;
}

/* Bytes that the whole header of an upper layer has; 0: unknown to us. */
static __always_inline __u32 upper_bytes(__u8 protocol, __u8 family)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return 20;
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
		return 12;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
		return 8;
	case IPPROTO_ICMP:
		return family == 4 ? 8 : 0;
	case IPPROTO_ICMPV6:
		return family == 6 ? 8 : 0;
	default:
		return 0;
	}
}

/* Neither "this network" nor loopback, multicast, class E or broadcast. */
static __always_inline bool ipv4_is_unicast(const __u8 *address)
{
	return address[0] != 0 && address[0] != 127 && address[0] < 224;
}

/* RFC 1071, over 20 bytes: their sum comes out as all ones. Folded twice it is below
 * 0x10008; a third fold would make no other number all ones.
 */
static __always_inline bool ipv4_checksum_is_good(const __u8 *header)
{
	__u64 sum = 0;

	for (int i = 0; i < 20; i += 4)
		sum += load32_be(header + i);
	for (int i = 0; i < 2; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* The tag of a card, as words of the mark; all 0: none. */
struct card_tag {
	__u32 verdict;
	__u32 generation;
	__u32 domain;
};

static __always_inline int redirect(struct xdp_md *ctx, __u16 vlan, const struct card_tag *tag,
				    enum lockgate_counter *counter)
{
	struct lockgate_mark *mark;
	int action;

	*counter = LOCKGATE_MARK_FAILED;
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark)))
		return XDP_DROP;
	mark = (void *)(long)ctx->data_meta;
	if ((void *)(mark + 1) > (void *)(long)ctx->data)
		return XDP_DROP;
	mark->magic = LOCKGATE_MAGIC;
	mark->netdev = options.netdev;
	mark->vlan = vlan;
	mark->incarnation = options.incarnation;
	mark->generation = tag->generation;
	mark->zone = 0;
	mark->verdict = tag->verdict;
	mark->domain = tag->domain;
	mark->reserved = 0;
	/* The socket is looked up here, once: a queue without one says XDP_DROP. */
	action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
	*counter = action == XDP_REDIRECT ? LOCKGATE_TO_WORKER : LOCKGATE_NO_SOCKET;
	return action;
}

/* Counts a frame by its fate, and lets the operator's program see it. */
static __always_inline int finish(struct xdp_md *ctx, int action, enum lockgate_counter counter)
{
	struct lockgate_counters *sums;
	__u32 key = 0, index = counter;

	sums = bpf_map_lookup_elem(&counters, &key);
	/*
	 * A compiler that knows all values of the counter leaves the comparison out, and the
	 * verifier, which does not know them, refuses the program (clang 19).
	 */
	barrier_var(index);
	if (sums && index < LOCKGATE_COUNTERS)
		sums->frames[index]++;
	bpf_tail_call(ctx, &after, action);
	return action;
}

#endif
