// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Steers the frames of one netdev: to Linux what is Linux's, to a worker's
 * AF_XDP socket everything else, with a mark in front that says where it came
 * from. A frame is passed only if every header that says so was read and is
 * sound; what is unknown, unusual or truncated goes to the worker, which judges
 * it again. A queue without a socket drops. Packets of overlays on a protected
 * port go to the kernel tier first, if there is one (overlay.bpf.c).
 *
 * Frames of an emulated card begin with its header, which is taken away first;
 * its tag goes into the mark of what goes to the worker, but for packets of the
 * kernel tier, which lose it.
 *
 * The worker's first stage (crates/dataplane/src/receive.rs) is the authority
 * on what is Linux's; this program passes nothing that it would not.
 *
 * Not handled: frames in several buffers (the program is not xdp.frags, so such
 * a netdev refuses it), tags stripped by the netdev before XDP sees the frame.
 */
#include <linux/ipv6.h>
#include "frame.h"

/* Longest chain of IPv6 extension headers that is followed. */
#define MAX_EXTENSIONS 8

/* 0 -> the netdev's ports; made anew by the process for each change. */
struct port_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct lockgate_ports));
};

/* Address -> what it is to us (LOCKGATE_OWN_*); made anew likewise. */
struct address_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCKGATE_MAX_ADDRESSES);
	__uint(key_size, sizeof(struct lockgate_address));
	__uint(value_size, sizeof(__u32));
};

/* Prefix -> side that its route leads to (LOCKGATE_SIDE_*); made anew likewise. */
struct prefix_table {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, LOCKGATE_MAX_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct lockgate_prefix));
	__uint(value_size, sizeof(__u32));
};

/* Destination and SPI of ESP that Linux opens -> 1; made anew likewise. */
struct carried_sa_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCKGATE_MAX_CARRIED_SAS);
	__uint(key_size, sizeof(struct lockgate_carried_sa));
	__uint(value_size, sizeof(__u32));
};

/* 0 -> the table in force, of each kind: replaced whole, by one pointer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct port_table);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct address_table);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct prefix_table);
} prefixes SEC(".maps");

/* Networks of peers whose packets Linux carries -> which way (LOCKGATE_CARRIED_*): empty, unless
 * there are any.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct prefix_table);
} carried SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct carried_sa_table);
} carried_sas SEC(".maps");

/* Tier -> its program, by which a frame of its kind goes on; empty: there is none.
 * Closed with the process that made it, so that a dead one leaves no tier behind.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, LOCKGATE_TIERS);
	__type(key, __u32);
	__type(value, __u32);
} tiers SEC(".maps");

/* Functions that are not static are checked by the verifier once each, not once
 * a path that leads there: of those a closer look consists.
 */

enum fragment {
	FRAGMENT_WHOLE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

struct packet {
	struct lockgate_address source;
	struct lockgate_address destination;
	/* Fit for forwarding: what the worker's parser demands of any packet. */
	bool sound;
	__u8 family; /* 4 or 6 */
	__u8 protocol; /* above all extension headers */
	__u8 hop_limit;
	enum fragment fragment;
	__u16 type; /* ICMP type; meaningless for others */
	__u16 code; /* ICMP code, likewise */
	__u16 port; /* destination, host byte order, if has_ports */
	bool has_ports;
	bool is_ike; /* a UDP datagram that begins with the non-ESP marker: RFC 3948 */
};

/* The netdev's ports; NULL: nobody has said. */
static __always_inline struct lockgate_ports *ports_in_force(void)
{
	__u32 key = 0;
	void *slot = bpf_map_lookup_elem(&ports, &key);

	return slot ? bpf_map_lookup_elem(slot, &key) : NULL;
}

/* Takes the header of an emulated card away. False: it is missing, or of a kind
 * that is not known; nothing that the card hands over is without it.
 */
static __always_inline bool take_card_header(struct xdp_md *ctx, struct card_tag *tag)
{
	struct lockgate_card_header *header = (void *)(long)ctx->data;

	if ((void *)(header + 1) + ETH_HLEN > (void *)(long)ctx->data_end)
		return false;
	if (header->magic != LOCKGATE_CARD_MAGIC || header->kind > LOCKGATE_CARD_FORGED)
		return false;
	if (header->kind != LOCKGATE_CARD_PLAIN) {
		/* Kinds and words are in the same order. */
		tag->verdict = LOCKGATE_CARD_TAG + (header->kind - LOCKGATE_CARD_RULE);
		tag->generation = header->incarnation;
		tag->domain = header->handle;
	}
	return !bpf_xdp_adjust_head(ctx, sizeof(*header));
}

/* The rules of a frame's port; NULL: undeclared. */
static __always_inline struct lockgate_port *port_of(struct lockgate_ports *table, __u16 vlan)
{
	struct lockgate_port *port;
	__u8 place;

	if (!table)
		return NULL;
	place = table->place[vlan == LOCKGATE_VLAN_UNTAGGED ? 0 : vlan & 0x0fff];
	port = &table->ports[place];
	if (!place || (port->side != LOCKGATE_SIDE_PROTECTED &&
		       port->side != LOCKGATE_SIDE_UNPROTECTED))
		return NULL;
	return port;
}

/* The upper layer that begins at byte `at` of the frame and has `length` bytes by
 * the IP header. 0: too short for its protocol.
 */
__noinline int parse_upper(struct xdp_md *ctx, __u32 at, __u32 length, struct packet *packet)
{
	__u8 *upper = (__u8 *)(long)ctx->data + (at & FRAME_MASK);
	__u8 *end = (__u8 *)(long)ctx->data_end;
	__u32 least;

	if (!packet || at > FRAME_MASK)
		return 0;
	least = upper_bytes(packet->protocol, packet->family);
	if (packet->fragment == FRAGMENT_LATER || !least)
		return 1;
	if (length < 8 || upper + 8 > end)
		return 0;
	if (packet->fragment == FRAGMENT_WHOLE && length < least)
		packet->sound = false;
	packet->type = upper[0];
	packet->code = upper[1];
	packet->port = load16(upper + 2);
	packet->has_ports = packet->protocol != IPPROTO_ICMP &&
			    packet->protocol != IPPROTO_ICMPV6;
	if (packet->protocol == IPPROTO_UDP && length >= 12 && upper + 12 <= end)
		packet->is_ike = !load32_be(upper + 8);
	return 1;
}

static __always_inline void load_ipv4(struct lockgate_address *into, const __u8 *address)
{
	into->words[0] = 0;
	into->words[1] = 0;
	into->words[2] = bpf_htonl(0xffff);
	into->words[3] = load32_be(address);
}

static __always_inline void load_ipv6(struct lockgate_address *into, const __u8 *address)
{
	for (int i = 0; i < 4; i++)
		into->words[i] = load32_be(address + 4 * i);
}

/* RFC 791, from byte `at` of the frame on. A header with options is read, but
 * left to the worker to judge. 0: it cannot be read.
 */
__noinline int parse_ipv4(struct xdp_md *ctx, __u32 at, struct packet *packet)
{
	__u8 *header = (__u8 *)(long)ctx->data + (at & FRAME_MASK);
	__u8 *end = (__u8 *)(long)ctx->data_end;
	__u32 there, total, header_length, data_length, flags, offset;

	if (!packet || header + 20 > end || header[0] >> 4 != 4)
		return 0;
	there = end - header;
	header_length = (header[0] & 0x0f) * 4;
	total = load16(header + 2);
	if (header_length < 20 || total < header_length || total > there)
		return 0;
	flags = load16(header + 6);
	offset = (flags & 0x1fff) * 8;
	data_length = total - header_length;
	if ((flags & 0x2000 && data_length % 8) || offset + data_length > 65535 - 20)
		return 0;

	packet->family = 4;
	packet->protocol = header[9];
	packet->hop_limit = header[8];
	packet->fragment = offset ? FRAGMENT_LATER :
			   flags & 0x2000 ? FRAGMENT_FIRST : FRAGMENT_WHOLE;
	packet->sound = header_length == 20 && header[8] && ipv4_is_unicast(header + 12) &&
			ipv4_is_unicast(header + 16) && ipv4_checksum_is_good(header);
	load_ipv4(&packet->source, header + 12);
	load_ipv4(&packet->destination, header + 16);
	return parse_upper(ctx, at + header_length, data_length, packet);
}

static __always_inline bool ipv6_is_mapped(const struct lockgate_address *address)
{
	return !address->words[0] && !address->words[1] &&
	       address->words[2] == bpf_htonl(0xffff);
}

/* RFC 4291: neither multicast nor unspecified, loopback or IPv4-mapped. */
static __always_inline bool ipv6_is_unicast(const struct lockgate_address *address)
{
	const __u32 *words = address->words;

	if (bpf_ntohl(words[0]) >> 24 == 0xff || ipv6_is_mapped(address))
		return false;
	return words[0] | words[1] | words[2] || bpf_ntohl(words[3]) > 1;
}

/* Extension headers of RFC 8200, and mobility, HIP and shim6. */
static __always_inline bool is_extension(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_DSTOPTS:
	case IPPROTO_MH:
	case 139:
	case 140:
		return true;
	default:
		return false;
	}
}

/* RFC 8200 §4: the chain that begins behind the IPv6 header at byte `at` of the
 * frame, `total` bytes of packet with that header. Sets protocol and fragment;
 * returns where the upper layer begins in the packet. 0: it cannot be read, or
 * has two Fragment headers.
 */
__noinline int walk_extensions(struct xdp_md *ctx, __u32 at, __u32 total, struct packet *packet)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	enum fragment fragment = FRAGMENT_WHOLE;
	bool has_fragment_header = false;
	__u32 offset = 40;
	__u8 protocol;

	if (!packet)
		return 0;
	protocol = packet->protocol;
	for (int i = 0; i < MAX_EXTENSIONS && is_extension(protocol); i++) {
		__u8 *header = data + ((at + offset) & FRAME_MASK);
		__u32 length = 8, field;

		if (at + offset > FRAME_MASK || offset + 8 > total || header + 8 > end)
			return 0;
		if (protocol == IPPROTO_FRAGMENT) {
			field = load16(header + 2);
			length = total - offset - 8;
			if (has_fragment_header || (field & 1 && length % 8) ||
			    (field & 0xfff8) + length > 65535)
				return 0;
			has_fragment_header = true;
			fragment = field & 0xfff8 ? FRAGMENT_LATER :
				   field & 1 ? FRAGMENT_FIRST : FRAGMENT_WHOLE;
			length = 8;
		} else {
			length = (header[1] + 1) * 8;
			/* Source routes are the worker's to refuse. */
			if ((protocol == IPPROTO_HOPOPTS && i) ||
			    (protocol == IPPROTO_ROUTING && header[3]))
				return 0;
		}
		protocol = header[0];
		offset += length;
		if (offset > total)
			return 0;
		if (fragment == FRAGMENT_LATER)
			break;
	}
	if (is_extension(protocol))
		return 0;
	packet->protocol = protocol;
	packet->fragment = fragment;
	return offset;
}

/* RFC 8200, from byte `at` of the frame on. 0: it cannot be read. */
__noinline int parse_ipv6(struct xdp_md *ctx, __u32 at, struct packet *packet)
{
	__u8 *header = (__u8 *)(long)ctx->data + (at & FRAME_MASK);
	__u8 *end = (__u8 *)(long)ctx->data_end;
	__u32 total, upper;

	if (!packet || header + 40 > end || header[0] >> 4 != 6)
		return 0;
	total = load16(header + 4) + 40;
	if (total > (__u32)(end - header))
		return 0;
	packet->family = 6;
	packet->protocol = header[6];
	packet->hop_limit = header[7];
	load_ipv6(&packet->source, header + 8);
	load_ipv6(&packet->destination, header + 24);
	/* Would be taken for IPv4 in our tables. */
	if (ipv6_is_mapped(&packet->source) || ipv6_is_mapped(&packet->destination))
		return 0;
	packet->sound = header[7] && ipv6_is_unicast(&packet->source) &&
			ipv6_is_unicast(&packet->destination);
	upper = walk_extensions(ctx, at, total, packet);
	if (upper < 40 || upper > total)
		return 0;
	return parse_upper(ctx, at + upper, total - upper, packet);
}

static __always_inline __u32 own(const struct lockgate_address *address)
{
	/* Linux 6.1 takes no key that a function was given by reference. */
	struct lockgate_address key = *address;
	__u32 in_force = 0;
	void *table = bpf_map_lookup_elem(&addresses, &in_force);
	__u32 *found = table ? bpf_map_lookup_elem(table, &key) : NULL;

	return found ? *found : 0;
}

/* 169.254.0.0/16 (RFC 3927), fe80::/10 (RFC 4291). */
static __always_inline bool is_link_local(const struct packet *packet)
{
	const __u32 *words = packet->destination.words;

	if (packet->family == 4)
		return bpf_ntohl(words[3]) >> 16 == 0xa9fe;
	return bpf_ntohl(words[0]) >> 22 == 0xfe8 >> 2;
}

static __always_inline bool is_unspecified(const struct packet *packet)
{
	const __u32 *words = packet->source.words;

	return !words[0] && !words[1] && !words[3] &&
	       words[2] == (packet->family == 4 ? bpf_htonl(0xffff) : 0);
}

/* Who lives inside: nobody outside may speak from there. */
enum inside {
	INSIDE_NO,
	INSIDE_YES,
	INSIDE_UNKNOWN, /* nobody has said: the worker knows */
};

static __always_inline enum inside is_inside(const struct lockgate_address *address)
{
	__u32 in_force = 0;
	void *table = bpf_map_lookup_elem(&prefixes, &in_force);
	struct lockgate_prefix key = { .bits = 128, .address = *address };
	__u32 *side;

	if (!table)
		return INSIDE_UNKNOWN;
	side = bpf_map_lookup_elem(table, &key);
	return side && *side != LOCKGATE_SIDE_UNPROTECTED ? INSIDE_YES : INSIDE_NO;
}

/* `scope`: LOCKGATE_SERVICE_TO_US or LOCKGATE_SERVICE_TO_GROUPS. Fragments are
 * listed if their protocol's are, so that all of a datagram go the same way: a
 * later one shows no port, Linux reassembles and judges it.
 */
static __always_inline bool is_listed(const struct lockgate_port *port,
				      const struct packet *packet, __u8 scope)
{
	bool port_listed = packet->fragment == FRAGMENT_LATER;
	bool form_listed = packet->fragment == FRAGMENT_WHOLE;

	for (int i = 0; i < LOCKGATE_MAX_SERVICES && i < port->services_count; i++) {
		const struct lockgate_service *service = &port->services[i];

		if (service->protocol != packet->protocol || !(service->flags & scope))
			continue;
		if (service->flags & LOCKGATE_SERVICE_FRAGMENTS)
			form_listed = true;
		if (!(service->flags & LOCKGATE_SERVICE_PORTS) ||
		    (packet->has_ports && packet->port >= service->first_port &&
		     packet->port <= service->last_port))
			port_listed = true;
		if (port_listed && form_listed)
			return true;
	}
	return false;
}

/* RFC 4861 and, for its being whole, RFC 6980. */
static __always_inline bool is_discovery(const struct packet *packet)
{
	return packet->family == 6 && packet->protocol == IPPROTO_ICMPV6 &&
	       packet->fragment == FRAGMENT_WHOLE && packet->hop_limit == 255 &&
	       packet->type >= 133 && packet->type <= 137;
}

/* Tells of a path MTU (RFC 1191, RFC 8201): the worker looks whether it is that
 * of a peer, and hands the message on to Linux if it is listed.
 */
static __always_inline bool is_too_big(const struct packet *packet)
{
	if (packet->fragment != FRAGMENT_WHOLE)
		return false;
	if (packet->family == 4)
		return packet->protocol == IPPROTO_ICMP && packet->type == 3 &&
		       packet->code == 4;
	return packet->protocol == IPPROTO_ICMPV6 && packet->type == 2;
}

/* IP on an unprotected port, to us or to a group: Linux's only if listed, and if
 * the process says that no policy wants it. Why it is passed, or
 * LOCKGATE_TO_WORKER.
 */
__noinline int carve_out(const struct lockgate_port *port, const struct packet *packet, int to_us)
{
	enum inside inside = INSIDE_NO;
	__u32 to;

	if (!port || !packet)
		return LOCKGATE_TO_WORKER;
	to = own(&packet->destination);
	if (packet->protocol == IPPROTO_ESP)
		return LOCKGATE_TO_WORKER;
	/* Addresses inside are the policies' affair, whatever station is named. */
	if (to ? !(to & LOCKGATE_OWN_UNPROTECTED) && !is_link_local(packet) : to_us)
		return LOCKGATE_TO_WORKER;
	/* Nobody outside speaks from an address of ours or inside, be it to a group.
	 * From no address at all one asks whether one is free.
	 */
	if (to_us || !is_unspecified(packet)) {
		inside = is_inside(&packet->source);
		if (own(&packet->source) || inside == INSIDE_YES)
			return LOCKGATE_TO_WORKER;
	}
	/* Discovery works on its link only: the worker has no way back to it. */
	if (is_discovery(packet))
		return LOCKGATE_PASSED_ARP_ND;
	if (inside == INSIDE_UNKNOWN)
		return LOCKGATE_TO_WORKER;
	if (to_us && to && is_too_big(packet))
		return LOCKGATE_TO_WORKER;
	/* What a policy may want is not among it. */
	if (!is_listed(port, packet, to ? LOCKGATE_SERVICE_TO_US : LOCKGATE_SERVICE_TO_GROUPS))
		return LOCKGATE_TO_WORKER;
	/* Shared by IKE and, for the worker, ESP in UDP and keepalives: Linux, which
	 * may have no socket there, would answer these with ICMP.
	 */
	if (to_us && packet->protocol == IPPROTO_UDP && packet->has_ports &&
	    packet->port == 4500 && !packet->is_ike)
		return LOCKGATE_TO_WORKER;
	return LOCKGATE_PASSED_ALLOW_HOST;
}

/* Whether a packet is surely none of Linux's: most are, and are spared a closer
 * look.
 */
static __always_inline bool is_surely_ours(const struct link *link, const __u8 *end, bool protected)
{
	const __u8 *header = link->network;
	struct lockgate_address to;
	__u8 protocol;

	if (link->ethertype == ETH_P_IP) {
		if (header + 20 > end)
			return true;
		protocol = header[9];
		load_ipv4(&to, header + 16);
	} else {
		if (header + 40 > end)
			return true;
		protocol = header[6];
		load_ipv6(&to, header + 24);
	}
	return protected ? !own(&to) : protocol == IPPROTO_ESP;
}

/* To us in an overlay of this port: the worker opens it. Fragments but the first
 * show no port, and are Linux's, which drops them for want of the first.
 */
static __always_inline bool is_of_overlay(const struct lockgate_port *port,
					  const struct packet *packet)
{
	bool is_named = false;

	if (packet->protocol != IPPROTO_UDP || packet->fragment == FRAGMENT_LATER)
		return false;
	for (int i = 0; i < LOCKGATE_MAX_OVERLAYS; i++)
		is_named |= port->overlays[i] && port->overlays[i] == packet->port;
	return is_named;
}

/* To the UDP port of an overlay, by IPv4 without options: a worker's, whatever its
 * address and however unsound, so that the tier of overlays may look at it first.
 */
static __always_inline bool is_for_tier(const struct lockgate_port *port, const struct link *link,
					const __u8 *end)
{
	const __u8 *header = link->network;
	__u16 to;

	if (!port->overlays[0] || link->ethertype != ETH_P_IP || header + 28 > end)
		return false;
	if (header[0] != 0x45 || header[9] != IPPROTO_UDP || load16(header + 6) & 0x3fff)
		return false;
	to = load16(header + 22);
	for (int i = 0; to && i < LOCKGATE_MAX_OVERLAYS; i++)
		if (port->overlays[i] == to)
			return true;
	return false;
}

/* ESP by an SA that Linux opens by. Fragments are the worker's, which drops them, as
 * it drops all ESP of such an SA.
 */
static __always_inline bool is_carried_esp(const struct link *link, const __u8 *end)
{
	const __u8 *header = link->network;
	struct lockgate_carried_sa sa;
	__u32 in_force = 0;
	void *table = bpf_map_lookup_elem(&carried_sas, &in_force);

	if (!table)
		return false;
	if (link->ethertype == ETH_P_IP) {
		if (header + 28 > end || header[0] != 0x45 || load16(header + 6) & 0x3fff)
			return false;
		load_ipv4(&sa.address, header + 16);
		sa.spi = load32_be(header + 20);
	} else {
		if (header + 48 > end)
			return false;
		load_ipv6(&sa.address, header + 24);
		sa.spi = load32_be(header + 40);
	}
	return bpf_map_lookup_elem(table, &sa);
}

/* Whether Linux carries an IP packet to our station, for a card that does ESP under
 * Linux: it is to, or from outside from, a network of a peer whose SAs Linux has; or
 * ESP of such an SA. From outside also in clear: a card may have opened it, which
 * only Linux is told. What Linux then neither opened nor is to seal, the guard drops.
 */
static __always_inline bool is_carried(const struct link *link, const __u8 *end, bool protected)
{
	const __u8 *header = link->network;
	struct lockgate_prefix key;
	__u32 in_force = 0;
	void *table = bpf_map_lookup_elem(&carried, &in_force);
	__u8 protocol;
	__u32 *ways;

	if (!table)
		return false;
	key.bits = 128;
	if (link->ethertype == ETH_P_IP) {
		if (header + 20 > end)
			return false;
		protocol = header[9];
		load_ipv4(&key.address, protected ? header + 16 : header + 12);
	} else {
		if (header + 40 > end)
			return false;
		protocol = header[6];
		load_ipv6(&key.address, protected ? header + 24 : header + 8);
	}
	if (!protected && protocol == IPPROTO_ESP && is_carried_esp(link, end))
		return true;
	ways = bpf_map_lookup_elem(table, &key);
	return ways && *ways & (protected ? LOCKGATE_CARRIED_OUT : LOCKGATE_CARRIED_IN);
}

/* Why a frame is passed to Linux, or LOCKGATE_TO_WORKER. */
static __always_inline enum lockgate_counter judge(struct xdp_md *ctx,
						   struct lockgate_ports *table,
						   const struct card_tag *tag, __u16 *vlan)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	struct lockgate_port *port;
	bool protected, to_us, read;
	struct packet packet;
	struct link link;

	read = parse_link(data, end, &link);
	*vlan = link.vlan;
	/* What an SA opened is inside of a tunnel, whatever it looks like. */
	if (!read || data + ETH_HLEN > end || tag->verdict == LOCKGATE_CARD_SA)
		return LOCKGATE_TO_WORKER;
	port = port_of(table, link.vlan);
	if (!port)
		return LOCKGATE_TO_WORKER;
	protected = port->side == LOCKGATE_SIDE_PROTECTED;

	if (link.ethertype == ETH_P_ARP)
		return LOCKGATE_PASSED_ARP_ND;
	to_us = same_station(data, port->mac);
	if (!to_us && (protected || !(data[0] & 1)))
		return LOCKGATE_PASSED_NOT_TO_US;
	if (link.ethertype != ETH_P_IP && link.ethertype != ETH_P_IPV6)
		return protected ? LOCKGATE_PASSED_NOT_IP : LOCKGATE_TO_WORKER;

	if (to_us && is_carried(&link, end, protected))
		return LOCKGATE_PASSED_CARRIED;
	if (protected && is_for_tier(port, &link, end))
		bpf_tail_call(ctx, &tiers, LOCKGATE_TIER_OVERLAY);
	if (is_surely_ours(&link, end, protected))
		return LOCKGATE_TO_WORKER;
	__builtin_memset(&packet, 0, sizeof(packet));
	if (link.ethertype == ETH_P_IP)
		read = parse_ipv4(ctx, link.length, &packet);
	else
		read = parse_ipv6(ctx, link.length, &packet);
	if (!read || (to_us && !packet.sound))
		return LOCKGATE_TO_WORKER;
	if (!protected)
		return carve_out(port, &packet, to_us);
	if (is_of_overlay(port, &packet))
		return LOCKGATE_TO_WORKER;
	/* It is to an address of ours; nobody else sends from one. */
	return own(&packet.source) ? LOCKGATE_TO_WORKER : LOCKGATE_PASSED_TO_HOST;
}

SEC("xdp")
int lockgate_steer(struct xdp_md *ctx)
{
	struct lockgate_ports *table = ports_in_force();
	__u16 vlan = LOCKGATE_VLAN_OTHER;
	enum lockgate_counter counter;
	struct card_tag tag = {};
	int action = XDP_PASS;

	if (table && table->link == LOCKGATE_LINK_CARDED && !take_card_header(ctx, &tag))
		return finish(ctx, XDP_DROP, LOCKGATE_NO_CARD_HEADER);
	counter = judge(ctx, table, &tag, &vlan);
	if (counter == LOCKGATE_TO_WORKER)
		action = redirect(ctx, vlan, &tag, &counter);
	return finish(ctx, action, counter);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
