// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The kernel tier of overlays: answers in front of the workers what it can. A
 * packet of a virtual network (VXLAN, RFC 7348; Geneve, RFC 8926) whose sender and
 * destination are in its tables is addressed to the host that has the destination
 * and transmitted; a question for the link address of one is answered (RFC 826).
 *
 * The walk is the authority (crates/dataplane/src/decide/crossing): what leaves here
 * is byte for byte what the walk would have sent, or the frame is a miss: it goes
 * up to a worker as it came. Misses are, among others, everything that the walk
 * would drop for another reason than a rule of groups, IPv6, fragments, IP options,
 * TCP segments that do more than acknowledge, frames with padding.
 *
 * Rules are not here. Of a network with groups the verdicts on single flows are,
 * each under the generation of rules that it was given by; the rest is the workers'.
 *
 * The process fills the tables, and says until when they hold: one that is dead or
 * hangs does not renew the lease, and everything is a miss. See src/tier.rs.
 */
#include "frame.h"
#include "tables.h"

#define ETH_P_ARP_REPLY 2
#define ARP_BYTES 28
#define UDP_BYTES 8
#define OVERLAY_BYTES 8
#define OUTER_BYTES (20 + UDP_BYTES + OVERLAY_BYTES)
/* Options of a Geneve header that are read; more are the worker's to judge. */
#define MAX_OPTIONS 4
#define DONT_FRAGMENT 0x4000
#define HOP_LIMIT 64
/* Trans Ether Bridging. */
#define ETHERNET_IN_GENEVE 0x6558

/* A frame on its way through. Behind each pointer: how many bytes are known to be there. */
struct crossing {
	__u8 *frame; /* ETH_HLEN */
	__u8 *ip; /* up to the end of the overlay's header without options */
	__u8 *tenant; /* its link and IPv4 header, which may be something else */
	__u32 ip_at; /* from the first byte of the frame on, as all offsets */
	__u32 tenant_at;
	__u32 vni;
	__u32 kind; /* LOCKGATE_KIND_* */
	__u32 sampled; /* as in the lease */
	__u16 vlan;
};

/* The network of a frame, as it was when it was looked at. */
struct gate {
	__u32 number;
	__u32 state; /* LOCKGATE_NETWORK_* */
	__u32 generation;
};

/* What the audit is told of a packet that was answered. */
struct answer {
	const struct lockgate_endpoint *from, *to;
	const struct lockgate_flow *judged; /* NULL: nobody asked for a verdict */
	struct gate gate;
	__u32 what; /* LOCKGATE_SAMPLE_* */
	__u32 protocol; /* 0: none, a question */
	__u32 from_slot, to_slot, flow_slot;
};

/* What a mark says of a packet that goes up although its verdict is known here. */
struct claim {
	__u32 zone;
	__u32 domain;
	__u32 generation;
	__u32 verdict; /* 0: nothing */
};

/* The frame has `bytes` bytes from offset `at` on. */
static __always_inline __u8 *bytes_at(struct xdp_md *ctx, __u32 at, __u32 bytes)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	__u8 *start = data + (at & FRAME_MASK);

	return start + bytes > end ? NULL : start;
}

/* Folds a sum below 2^36 to 16 bits. */
static __always_inline __u32 fold(__u64 sum)
{
	for (int i = 0; i < 3; i++)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u16 load16_raw(const __u8 *at)
{
	return *(const __u16 *)at;
}

static __always_inline void store16_raw(__u8 *at, __u16 value)
{
	*(__u16 *)at = value;
}

static __always_inline void store16(__u8 *at, __u16 value)
{
	store16_raw(at, bpf_htons(value));
}

static __always_inline void store32_be(__u8 *at, __u32 value)
{
	*(__u32 *)at = value;
}

static __always_inline void copy_station(__u8 *to, const __u8 *from)
{
	store32_be(to, load32_be(from));
	store16_raw(to + 4, load16_raw(from + 4));
}

/* What is added to a sum (RFC 1624) when a word of it changes. */
static __always_inline __u64 change32(__u32 old, __u32 new)
{
	return (__u64)(__u32)~old + new;
}

static __always_inline __u64 change16(__u16 old, __u16 new)
{
	return (__u64)(__u16)~old + new;
}

/* The checksum at `at` follows a change of what it sums. */
static __always_inline __u16 corrected(__u16 checksum, __u64 change)
{
	return ~fold((__u16)~checksum + change);
}

/* RFC 7348 §5, RFC 8926 §3: what the walk reads of them. Sets where the tenant's
 * frame begins, and the kind that the header looks like: only Geneve has Ethernet's
 * number there, or VXLAN's reserved bytes have it, and then no overlay will fit.
 */
static __always_inline bool parse_overlay(struct xdp_md *ctx, struct crossing *crossing)
{
	__u32 at = crossing->ip_at + OUTER_BYTES, left;
	const __u8 *header = crossing->ip + 20 + UDP_BYTES;

	crossing->vni = bpf_ntohl(load32_be(header + 4)) >> 8;
	crossing->tenant_at = at;
	crossing->kind = LOCKGATE_KIND_VXLAN;
	if (load16(header + 2) != ETHERNET_IN_GENEVE)
		return header[0] & 0x08;
	crossing->kind = LOCKGATE_KIND_GENEVE;
	/* Another version, or for the ends of the tunnel alone. */
	if (header[0] >> 6 || header[1] & 0x80)
		return false;
	left = (header[0] & 0x3f) * 4;
	crossing->tenant_at = at + left;
	for (int i = 0; i < MAX_OPTIONS && left; i++) {
		__u8 *option = bytes_at(ctx, at, 4);
		__u8 type;
		__u32 bytes;

		if (!option)
			return false;
		type = option[2];
		bytes = 4 + (option[3] & 0x1f) * 4;
		if (type & 0x80 && (load16(option) != 0x0111 ||
				    ((type & 0x7f) != 0x48 && (type & 0x7f) != 0x49)))
			return false;
		if (bytes > left)
			return false;
		at += bytes;
		left -= bytes;
	}
	return !left;
}

/* Mixes another word of a key into its hash. */
static __always_inline __u64 hashed(__u64 hash, __u32 word)
{
	hash = (hash ^ word) * LOCKGATE_HASH_FACTOR;
	return hash ^ hash >> 32;
}

/* Finds the slot that an index has for a hash. False: it has none. */
static __always_inline bool find(void *index, __u32 mask, __u64 hash, __u32 *slot)
{
	__u32 tag = hash >> 32 | 1, number = hash & mask;

	for (int choice = 0; choice < 2; choice++) {
		const struct lockgate_bucket *bucket = bpf_map_lookup_elem(index, &number);

		for (int i = 0; bucket && i < LOCKGATE_BUCKET_PLACES; i++) {
			/* In one piece: it may be written now. */
			__u64 place = *(const volatile __u64 *)&bucket->places[i];

			if (place >> 32 != tag)
				continue;
			*slot = place;
			return true;
		}
		number = (number ^ tag) & mask;
	}
	return false;
}

/* The record of an endpoint; NULL: it is not here. */
static __always_inline const struct lockgate_endpoint *endpoint(__u32 vni, __u32 address,
								 __u32 *slot)
{
	__u64 hash = hashed(hashed(options.process, vni), address);
	const struct lockgate_endpoint *record;

	if (!find(&endpoint_index, options.endpoint_mask, hash, slot))
		return NULL;
	record = bpf_map_lookup_elem(&endpoint_records, slot);
	if (!record || record->vni != vni || record->address != address)
		return NULL;
	return record;
}

/* The way to a host, if it is open for a packet of this many bytes that came with
 * this tag. NULL: there is none.
 */
static __always_inline const struct lockgate_way *way(__u32 number, __u32 host, __u32 length,
						       __u16 vlan)
{
	const struct lockgate_way *way = bpf_map_lookup_elem(&ways, &number);

	if (!number || !way || way->state != LOCKGATE_WAY_OPEN || way->host != host)
		return NULL;
	if (way->vlan != vlan || length > way->mtu)
		return NULL;
	return way;
}

/* XDP_TX, or XDP_REDIRECT to where the way leads; 0: the netdev is not there. */
static __always_inline int leave(struct xdp_md *ctx, const struct lockgate_way *way)
{
	if (way->ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect_map(&exits, way->ifindex, 0) == XDP_REDIRECT ? XDP_REDIRECT : 0;
}

/* Counts a packet of an endpoint. Returns its number on this core. */
static __always_inline __u64 count_hit(void *map, __u32 slot)
{
	__u64 *packets = bpf_map_lookup_elem(map, &slot);

	return packets ? ++*packets : 0;
}

/* Counts a packet of a flow by its verdict, as the walk would count it for a rule. */
static __always_inline void count_flow(__u32 slot, __u32 bytes)
{
	struct lockgate_flow_use *use = bpf_map_lookup_elem(&flow_hits, &slot);

	if (!use)
		return;
	use->packets++;
	use->bytes += bytes;
	use->last_ns = bpf_ktime_get_coarse_ns();
}

/* The sender of a tenant's frame: the endpoint with this address, if it lives on
 * the host that sent the packet and has the link address of the frame.
 */
static __always_inline const struct lockgate_endpoint *sender(const struct crossing *crossing,
							       __u32 address, __u32 host,
							       const __u8 *mac, __u32 *slot)
{
	const struct lockgate_endpoint *record = endpoint(crossing->vni, address, slot);

	if (!record || record->host != host || !same_station(record->mac, mac))
		return NULL;
	return record;
}

/* Addresses a packet to the host of its destination. `change`: of the tenant's
 * link address.
 */
static __always_inline void readdress(__u8 *frame, __u8 *ip, const struct lockgate_way *way,
				      __u64 change)
{
	__u64 addresses;
	__u8 *udp = ip + 20;
	__u16 sum;

	/* From the entrance that it came to. */
	addresses = change32(load32_be(ip + 12), load32_be(ip + 16));
	addresses += change32(load32_be(ip + 16), way->host);
	store32_be(ip + 12, load32_be(ip + 16));
	store32_be(ip + 16, way->host);
	ip[8]--;
	/* One less in the upper byte of its word. */
	sum = corrected(load16_raw(ip + 10), addresses + bpf_htons(0xfeff));
	store16_raw(ip + 10, sum);
	/* Zero says that there is none (RFC 768). */
	if (load16_raw(udp + 6)) {
		sum = corrected(load16_raw(udp + 6), addresses + change);
		store16_raw(udp + 6, sum ? sum : 0xffff);
	}
	copy_station(frame, way->destination);
	copy_station(frame + 6, way->source);
}

/* A tenant's IPv4 packet, which has `there` bytes: without options, whole, fit for
 * forwarding, and of TCP one that acknowledges, and neither begins nor ends a
 * connection.
 */
static __always_inline bool is_plain(struct xdp_md *ctx, const struct crossing *crossing,
				     __u32 there)
{
	const __u8 *header = crossing->tenant + ETH_HLEN, *tcp;
	__u32 total, least;

	if (header[0] != 0x45)
		return false;
	total = load16(header + 2);
	least = 20 + upper_bytes(header[9], 4);
	if (total < least || total > there || load16(header + 6) & 0x3fff || !header[8])
		return false;
	if (!ipv4_is_unicast(header + 12) || !ipv4_is_unicast(header + 16))
		return false;
	if (!ipv4_checksum_is_good(header))
		return false;
	if (header[9] != IPPROTO_TCP)
		return true;
	tcp = bytes_at(ctx, crossing->tenant_at + ETH_HLEN + 20, 20);
	return tcp && (tcp[13] & 0x17) == 0x10;
}

static __always_inline bool is_entrance(const struct lockgate_overlay *overlay, __u32 address)
{
	for (int i = 0; address && i < LOCKGATE_MAX_ENTRANCES; i++)
		if (overlay->entrances[i] == address)
			return true;
	return false;
}

/* The network of an endpoint answers this packet here: it is open or asks, and the
 * packet came in by its overlay.
 */
static __always_inline enum lockgate_miss enter(struct xdp_md *ctx, const struct crossing *crossing,
						const struct lockgate_endpoint *of,
						struct gate *gate)
{
	const struct lockgate_network *network;
	const struct lockgate_overlay *overlay;
	const __u8 *ip = crossing->ip;
	__u32 number = of->network;

	network = bpf_map_lookup_elem(&networks, &number);
	if (!network || network->vni != crossing->vni)
		return LOCKGATE_MISS_NETWORK;
	gate->number = number;
	gate->state = network->state;
	gate->generation = network->generation;
	if (gate->state != LOCKGATE_NETWORK_OPEN && gate->state != LOCKGATE_NETWORK_ASKS)
		return LOCKGATE_MISS_NETWORK;
	number = network->overlay;
	overlay = bpf_map_lookup_elem(&overlays, &number);
	if (!overlay || overlay->udp_port != load16(ip + 22) || overlay->vlan != crossing->vlan ||
	    overlay->ifindex != ctx->ingress_ifindex || overlay->kind != crossing->kind)
		return LOCKGATE_MISS_ENTRANCE;
	if (!is_entrance(overlay, load32_be(ip + 16)))
		return LOCKGATE_MISS_ENTRANCE;
	if (overlay->unsummed && load16_raw(ip + 26))
		return LOCKGATE_MISS_UNUSUAL;
	return LOCKGATE_MISS_NONE;
}

/* The ports of a plain packet, or its type and code of ICMP, as a selector sees them. */
static __always_inline bool upper_of(struct xdp_md *ctx, __u32 at, __u8 protocol, __u32 *upper)
{
	const __u8 *header;

	*upper = 0;
	if (!upper_bytes(protocol, 4))
		return true;
	header = bytes_at(ctx, at, 4);
	if (!header)
		return false;
	*upper = load32_be(header);
	if (protocol == IPPROTO_ICMP)
		*upper &= bpf_htonl(0xffff0000);
	return true;
}

/* The verdict of a network's groups on the flow of a plain packet, given under the
 * network's present generation; NULL: there is none here.
 */
static __always_inline const struct lockgate_flow *verdict(struct xdp_md *ctx,
							    const struct crossing *crossing,
							    const struct gate *gate, __u32 *slot)
{
	struct lockgate_flow_key key = { .vni = crossing->vni };
	const __u8 *header = crossing->tenant + ETH_HLEN;
	const struct lockgate_flow *record;
	__u64 hash;

	key.source = load32_be(header + 12);
	key.destination = load32_be(header + 16);
	key.protocol = header[9];
	if (!upper_of(ctx, crossing->tenant_at + ETH_HLEN + 20, header[9], &key.upper))
		return NULL;
	hash = hashed(hashed(hashed(options.process, key.vni), key.source), key.destination);
	hash = hashed(hashed(hash, key.protocol), key.upper);
	if (!find(&flow_index, options.flow_mask, hash, slot))
		return NULL;
	record = bpf_map_lookup_elem(&flow_records, slot);
	if (!record || record->generation != gate->generation || record->network != gate->number)
		return NULL;
	if (record->vni != key.vni || record->source != key.source ||
	    record->destination != key.destination || record->protocol != key.protocol ||
	    record->upper != key.upper)
		return NULL;
	return record;
}

/* A packet whose verdict is known goes up for this reason. */
static __always_inline enum lockgate_miss go_up(const struct lockgate_flow *judged,
						struct claim *claim, enum lockgate_miss miss)
{
	if (judged) {
		claim->zone = judged->vni;
		claim->domain = judged->rules_domain;
		claim->generation = judged->rules_generation;
		claim->verdict = judged->claim;
	}
	return miss;
}

/* Tells of a packet that was answered, if it is one of those that are sampled. `packets`
 * is its number among its sender's: each draws anew, so flows that take turns are
 * sampled alike.
 */
static __always_inline void tell(struct xdp_md *ctx, const struct crossing *crossing,
				 const struct answer *answer, __u64 packets)
{
	const struct lockgate_flow *judged = answer->judged;
	struct lockgate_sample *sample;
	__u32 draw;

	if (!crossing->sampled)
		return;
	draw = hashed(hashed(options.process, answer->from_slot), packets);
	if (draw > crossing->sampled)
		return;
	sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
	if (!sample) {
		count_hit(&unheard, 0);
		return;
	}
	sample->at_ns = bpf_ktime_get_coarse_ns();
	sample->answer = answer->what;
	sample->vni = crossing->vni;
	sample->source = answer->from->address;
	sample->destination = answer->to->address;
	sample->protocol = answer->protocol;
	sample->upper = 0;
	if (answer->protocol)
		upper_of(ctx, crossing->tenant_at + ETH_HLEN + 20, answer->protocol,
			 &sample->upper);
	sample->network = answer->gate.number;
	sample->generation = answer->gate.generation;
	sample->flow = judged ? answer->flow_slot : LOCKGATE_NO_FLOW;
	sample->rules_domain = judged ? judged->rules_domain : 0;
	sample->rules_generation = judged ? judged->rules_generation : 0;
	sample->claim = judged ? judged->claim : 0;
	sample->endpoint = answer->to_slot;
	sample->host = answer->to->host;
	copy_station(sample->mac, answer->to->mac);
	sample->reserved = 0;
	bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
}

/* A tenant's packet: forwarded, dropped by a verdict, or the reason why not. */
static __always_inline enum lockgate_miss carry(struct xdp_md *ctx, const struct crossing *crossing,
						__u32 length, int *action,
						enum lockgate_counter *counter, struct claim *claim)
{
	__u32 around = crossing->tenant_at + ETH_HLEN - crossing->ip_at, said;
	__u8 *ip = crossing->ip, *tenant = crossing->tenant;
	struct answer answer = { .what = LOCKGATE_SAMPLE_SENT };
	const struct lockgate_flow *judged = NULL;
	const struct lockgate_endpoint *from, *to;
	const struct lockgate_way *by;
	enum lockgate_miss miss;
	__u64 change, packets;

	if (!is_plain(ctx, crossing, length - around))
		return LOCKGATE_MISS_UNUSUAL;
	from = sender(crossing, load32_be(tenant + ETH_HLEN + 12), load32_be(ip + 12), tenant + 6,
		      &answer.from_slot);
	if (!from)
		return LOCKGATE_MISS_SENDER;
	miss = enter(ctx, crossing, from, &answer.gate);
	if (miss != LOCKGATE_MISS_NONE)
		return miss;
	said = LOCKGATE_VERDICT_PERMIT;
	if (answer.gate.state == LOCKGATE_NETWORK_ASKS) {
		judged = verdict(ctx, crossing, &answer.gate, &answer.flow_slot);
		said = judged ? judged->verdict : 0;
	}
	to = endpoint(crossing->vni, load32_be(tenant + ETH_HLEN + 16), &answer.to_slot);
	if (!to)
		return go_up(judged, claim, LOCKGATE_MISS_ENDPOINT);
	answer.from = from;
	answer.to = to;
	answer.judged = judged;
	answer.protocol = tenant[ETH_HLEN + 9];
	if (said == LOCKGATE_VERDICT_DROP) {
		*counter = LOCKGATE_VERDICT_DROPPED;
		*action = XDP_DROP;
		packets = count_hit(&hits, answer.from_slot);
		count_hit(&hits, answer.to_slot);
		count_flow(answer.flow_slot, load16(tenant + ETH_HLEN + 2));
		answer.what = LOCKGATE_SAMPLE_DROPPED;
		tell(ctx, crossing, &answer, packets);
		return LOCKGATE_MISS_NONE;
	}
	if (said != LOCKGATE_VERDICT_PERMIT)
		return LOCKGATE_MISS_FLOW;
	by = way(to->way, to->host, length, crossing->vlan);
	*action = by ? leave(ctx, by) : 0;
	if (!by || !*action)
		return go_up(judged, claim, LOCKGATE_MISS_WAY);
	change = change32(load32_be(tenant), load32_be(to->mac)) +
		 change16(load16_raw(tenant + 4), load16_raw(to->mac + 4));
	copy_station(tenant, to->mac);
	readdress(crossing->frame, ip, by, change);
	packets = count_hit(&hits, answer.from_slot);
	count_hit(&hits, answer.to_slot);
	if (answer.gate.state == LOCKGATE_NETWORK_ASKS)
		count_flow(answer.flow_slot, load16(tenant + ETH_HLEN + 2));
	tell(ctx, crossing, &answer, packets);
	return LOCKGATE_MISS_NONE;
}

/* RFC 826: a request in the form that Ethernet and IPv4 have. */
static __always_inline bool is_request(const __u8 *arp)
{
	return load16(arp) == 1 && load16(arp + 2) == ETH_P_IP && arp[4] == 6 && arp[5] == 4 &&
	       load16(arp + 6) == 1;
}

/* Turns a request into its reply: `mac` has the address that was asked for. */
static __always_inline void reply(__u8 *tenant, const __u8 *mac)
{
	__u8 *arp = tenant + ETH_HLEN;
	__u32 target = load32_be(arp + 24);

	copy_station(tenant, arp + 8);
	copy_station(tenant + 6, mac);
	store16(arp + 6, ETH_P_ARP_REPLY);
	copy_station(arp + 18, arp + 8);
	store32_be(arp + 24, load32_be(arp + 14));
	copy_station(arp + 8, mac);
	store32_be(arp + 14, target);
}

/* Writes an outer packet of `length` bytes anew, back to where it came from. */
static __always_inline void turn_back(__u8 *frame, __u8 *ip, const struct crossing *crossing,
				      const struct lockgate_way *way, __u16 length)
{
	__u32 entrance = load32_be(ip + 16);
	__u8 *udp = ip + 20;
	__u64 sum = 0;

	ip[1] = 0;
	store16(ip + 2, length);
	store16(ip + 4, 0);
	store16(ip + 6, DONT_FRAGMENT);
	ip[8] = HOP_LIMIT;
	store16(ip + 10, 0);
	store32_be(ip + 12, entrance);
	store32_be(ip + 16, way->host);
	for (int i = 0; i < 20; i += 4)
		sum += load32_be(ip + i);
	store16_raw(ip + 10, ~fold(sum));
	store16(udp + 4, length - 20);
	store16(udp + 6, 0);
	udp[8] = crossing->kind == LOCKGATE_KIND_VXLAN ? 0x08 : 0;
	udp[9] = 0;
	store16(udp + 10, crossing->kind == LOCKGATE_KIND_VXLAN ? 0 : ETHERNET_IN_GENEVE);
	store32_be(udp + 12, bpf_htonl(crossing->vni << 8));
	copy_station(frame, way->destination);
	copy_station(frame + 6, way->source);
}

/* A tenant's question for a link address: answered, or the reason why not. Groups
 * have no say in it: they judge IP packets.
 */
static __always_inline enum lockgate_miss answer_arp(struct xdp_md *ctx,
						     const struct crossing *crossing,
						     __u32 length, int *action)
{
	__u8 *tenant = bytes_at(ctx, crossing->tenant_at, ETH_HLEN + ARP_BYTES), *arp;
	const __u32 answered = OUTER_BYTES + ETH_HLEN + ARP_BYTES;
	__u8 *ip = crossing->ip;
	struct answer answer = { .what = LOCKGATE_SAMPLE_ANSWERED };
	const struct lockgate_endpoint *asks, *has;
	const struct lockgate_way *by;
	enum lockgate_miss miss;
	__u8 mac[ETH_ALEN];
	__u64 packets;

	/* Behind options the answer would begin elsewhere. */
	if (!tenant || crossing->tenant_at != crossing->ip_at + OUTER_BYTES)
		return LOCKGATE_MISS_UNUSUAL;
	arp = tenant + ETH_HLEN;
	if (!is_request(arp) || arp[8] & 1 || !same_station(arp + 8, tenant + 6))
		return LOCKGATE_MISS_UNUSUAL;
	asks = sender(crossing, load32_be(arp + 14), load32_be(ip + 12), tenant + 6, &answer.from_slot);
	if (!asks)
		return LOCKGATE_MISS_SENDER;
	miss = enter(ctx, crossing, asks, &answer.gate);
	if (miss != LOCKGATE_MISS_NONE)
		return miss;
	has = endpoint(crossing->vni, load32_be(arp + 24), &answer.to_slot);
	if (!has)
		return LOCKGATE_MISS_ENDPOINT;
	/* Who asks for an address of its own is told nothing: the walk says so. */
	if (has->host == asks->host && same_station(has->mac, tenant + 6))
		return LOCKGATE_MISS_UNUSUAL;
	by = way(asks->answers, asks->host, answered, crossing->vlan);
	*action = by ? leave(ctx, by) : 0;
	if (!by || !*action)
		return LOCKGATE_MISS_WAY;
	copy_station(mac, has->mac);
	reply(tenant, mac);
	turn_back(crossing->frame, ip, crossing, by, answered);
	packets = count_hit(&hits, answer.from_slot);
	answer.from = asks;
	answer.to = has;
	tell(ctx, crossing, &answer, packets);
	if (length > answered)
		bpf_xdp_adjust_tail(ctx, (int)answered - (int)length);
	return LOCKGATE_MISS_NONE;
}

/* The process renewed the lease, and it is the one that this program is of. */
static __always_inline bool is_leased(__u32 *sampled)
{
	__u32 key = 0;
	struct lockgate_lease *until = bpf_map_lookup_elem(&lease, &key);

	if (!until || until->incarnation != options.process)
		return false;
	*sampled = until->sampled;
	return bpf_ktime_get_coarse_ns() < until->until_ns;
}

/* RFC 791, RFC 768: a packet of `length` bytes in the form that the walk writes, and
 * fit for forwarding.
 */
static __always_inline bool is_outer(const __u8 *ip, __u32 length)
{
	if (ip[0] != 0x45 || ip[9] != IPPROTO_UDP || load16(ip + 6) & 0x3fff || ip[8] <= 1)
		return false;
	if (length < OUTER_BYTES || load16(ip + 24) != length - 20)
		return false;
	/* A sum of all ones is one that the walk would write as zeros. */
	return load16(ip + 10) != 0xffff && ipv4_is_unicast(ip + 12) &&
	       ipv4_checksum_is_good(ip);
}

/* Finishes a frame, or says why it is a miss; then it is as it came. */
static __always_inline enum lockgate_miss cross(struct xdp_md *ctx, __u16 *vlan, int *action,
						 enum lockgate_counter *counter,
						 struct claim *claim)
{
	__u8 *data = (__u8 *)(long)ctx->data, *end = (__u8 *)(long)ctx->data_end;
	struct crossing crossing = { .frame = data };
	struct link link;
	__u32 length;
	bool read;

	read = parse_link(data, end, &link);
	*vlan = crossing.vlan = link.vlan;
	if (!read || link.ethertype != ETH_P_IP)
		return LOCKGATE_MISS_UNUSUAL;
	crossing.ip_at = link.length;
	crossing.ip = bytes_at(ctx, crossing.ip_at, OUTER_BYTES);
	/* The tag that the walk writes: 802.1Q, without a priority. */
	if (!crossing.ip || (link.length > ETH_HLEN && (link.vlan == LOCKGATE_VLAN_UNTAGGED ||
						     load16(crossing.ip - 4) != link.vlan)))
		return LOCKGATE_MISS_UNUSUAL;
	length = load16(crossing.ip + 2);
	if (crossing.ip_at + length != (__u32)(end - data) || !is_outer(crossing.ip, length))
		return LOCKGATE_MISS_UNUSUAL;
	if (!is_leased(&crossing.sampled))
		return LOCKGATE_MISS_LEASE;
	if (!parse_overlay(ctx, &crossing))
		return LOCKGATE_MISS_UNUSUAL;
	crossing.tenant = bytes_at(ctx, crossing.tenant_at, ETH_HLEN + 20);
	if (!crossing.tenant)
		return LOCKGATE_MISS_UNUSUAL;
	if (load16(crossing.tenant + 12) == ETH_P_ARP) {
		*counter = LOCKGATE_ARP_ANSWERED;
		return answer_arp(ctx, &crossing, length, action);
	}
	if (load16(crossing.tenant + 12) != ETH_P_IP || crossing.tenant[0] & 1)
		return LOCKGATE_MISS_UNUSUAL;
	*counter = LOCKGATE_TRANSMITTED;
	return carry(ctx, &crossing, length, action, counter, claim);
}

/* Writes a claim into the mark that was put in front of a frame, if one was. */
static __always_inline void put_claim(struct xdp_md *ctx, const struct claim *claim)
{
	struct lockgate_mark *mark = (void *)(long)ctx->data_meta;

	if (!claim->verdict || (void *)(mark + 1) > (void *)(long)ctx->data)
		return;
	mark->zone = claim->zone;
	mark->domain = claim->domain;
	mark->generation = claim->generation;
	mark->verdict = claim->verdict;
}

SEC("xdp")
int lockgate_overlay(struct xdp_md *ctx)
{
	enum lockgate_counter counter = LOCKGATE_TO_WORKER;
	__u16 vlan = LOCKGATE_VLAN_OTHER;
	const struct card_tag no_tag = {};
	struct claim claim = {};
	enum lockgate_miss miss;
	int action = XDP_DROP;
	__u64 *frames;
	__u32 index;

	miss = cross(ctx, &vlan, &action, &counter, &claim);
	if (miss != LOCKGATE_MISS_NONE) {
		index = miss;
		frames = bpf_map_lookup_elem(&misses, &index);
		if (frames)
			(*frames)++;
		counter = LOCKGATE_TO_WORKER;
		action = redirect(ctx, vlan, &no_tag, &counter);
		put_claim(ctx, &claim);
	}
	return finish(ctx, action, counter);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
