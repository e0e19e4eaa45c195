/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the steering program and the process agree on. src/layout.rs mirrors
 * every type here; both sides assert the same sizes and offsets.
 */
#ifndef LOCKGATE_H
#define LOCKGATE_H

#include <linux/types.h>

/* Of lockgate_mark.magic: "LGK1". */
#define LOCKGATE_MAGIC 0x4c474b31

/* In place of a VLAN id (which has 12 bits). */
#define LOCKGATE_VLAN_UNTAGGED 0xffff /* no tag, or a priority tag */
#define LOCKGATE_VLAN_OTHER 0xfffe /* more than one tag, or none that can be read */

/* Most entries. */
#define LOCKGATE_MAX_PORTS 255 /* of a device */
#define LOCKGATE_MAX_SERVICES 34 /* of a port: 32 of allow_host, and IKE apart */
#define LOCKGATE_MAX_ADDRESSES 4096
#define LOCKGATE_MAX_PREFIXES 65536
#define LOCKGATE_MAX_QUEUES 64
/* Longest chain of IPv6 extension headers that is followed. */
#define LOCKGATE_MAX_EXTENSIONS 8

/* What happened to a frame: each frame counts once, in one of these. */
enum lockgate_counter {
	LOCKGATE_PASSED_NOT_TO_US, /* to another station, or a group of a protected link */
	LOCKGATE_PASSED_ARP_ND, /* ARP, and neighbour discovery on an unprotected port */
	LOCKGATE_PASSED_NOT_IP, /* to us on a protected port, neither IP nor ARP */
	LOCKGATE_PASSED_TO_HOST, /* to an address of ours, on a protected port */
	LOCKGATE_PASSED_ALLOW_HOST, /* to us on an unprotected port, listed by allow_host */
	LOCKGATE_TO_WORKER, /* redirected into a socket */
	LOCKGATE_NO_SOCKET, /* dropped: its queue has no socket */
	LOCKGATE_MARK_FAILED, /* dropped: no room for the mark */
	LOCKGATE_COUNTERS,
};

struct lockgate_counters {
	__u64 frames[LOCKGATE_COUNTERS];
};

/* Load-time constants. */
struct lockgate_options {
	__u32 incarnation; /* number of the attachment */
	__u16 device; /* the process's number of the netdev */
	__u16 reserved;
};

/* In front of every redirected frame, host byte order. */
struct lockgate_mark {
	__u32 magic;
	__u16 device;
	__u16 vlan;
	__u32 incarnation; /* as in struct lockgate_options */
	__u32 generation; /* of the policy domain that the verdict is of; 0: no verdict */
	__u32 zone; /* virtual network; 0: none */
	__u32 verdict; /* kind, and slot of the rule; 0: none */
	__u64 reserved;
};

enum lockgate_side {
	LOCKGATE_PROTECTED = 1,
	LOCKGATE_UNPROTECTED = 2,
};

/* Bits of lockgate_service.flags. */
enum lockgate_service_flag {
	LOCKGATE_SERVICE_PORTS = 1, /* only these ports; else the whole protocol */
	LOCKGATE_SERVICE_TO_US = 2, /* passed if to an address of ours */
	LOCKGATE_SERVICE_TO_GROUPS = 4, /* passed if to a group or a broadcast address */
	LOCKGATE_SERVICE_FRAGMENTS = 8, /* and later fragments likewise */
};

/* One entry of allow_host, as far as no policy may want its packets. */
struct lockgate_service {
	__u8 protocol;
	__u8 flags; /* enum lockgate_service_flag */
	__u16 first_port; /* host byte order */
	__u16 last_port; /* included */
};

struct lockgate_port {
	__u8 mac[6];
	__u8 side; /* enum lockgate_side */
	__u8 services_count;
	struct lockgate_service services[LOCKGATE_MAX_SERVICES];
};

/* All ports of the device. */
struct lockgate_ports {
	/* By VLAN id, untagged as id 0: place in ports; 0: undeclared. */
	__u8 place[4096];
	struct lockgate_port ports[LOCKGATE_MAX_PORTS + 1];
};

/* What an address is to us: bits of the value of an address. */
enum lockgate_own {
	LOCKGATE_OWN_PROTECTED = 1, /* ours, on a protected port */
	LOCKGATE_OWN_UNPROTECTED = 2, /* ours, on an unprotected port */
};

/* Network byte order; IPv4 as IPv4-mapped IPv6. */
struct lockgate_address {
	union {
		__u8 octets[16];
		__u16 halves[8];
		__u32 words[4];
	};
};

/* Key of the table of prefixes; its value is an enum lockgate_side. */
struct lockgate_prefix {
	__u32 bits; /* of the address; 96 + n for IPv4 */
	struct lockgate_address address;
};

#define LOCKGATE_ASSERT(condition) _Static_assert(condition, #condition)
LOCKGATE_ASSERT(LOCKGATE_COUNTERS == 8);
LOCKGATE_ASSERT(sizeof(struct lockgate_counters) == 64);
LOCKGATE_ASSERT(sizeof(struct lockgate_options) == 8);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_options, device) == 4);
LOCKGATE_ASSERT(sizeof(struct lockgate_mark) == 32);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_mark, device) == 4);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_mark, vlan) == 6);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_mark, incarnation) == 8);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_mark, generation) == 12);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_mark, zone) == 16);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_mark, verdict) == 20);
LOCKGATE_ASSERT(sizeof(struct lockgate_service) == 6);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_service, first_port) == 2);
LOCKGATE_ASSERT(sizeof(struct lockgate_port) == 212);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_port, side) == 6);
LOCKGATE_ASSERT(__builtin_offsetof(struct lockgate_port, services) == 8);
LOCKGATE_ASSERT(sizeof(struct lockgate_ports) == 4096 + 256 * 212);
LOCKGATE_ASSERT(sizeof(struct lockgate_address) == 16);
LOCKGATE_ASSERT(sizeof(struct lockgate_prefix) == 20);

#endif /* LOCKGATE_H */
