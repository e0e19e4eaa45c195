/* SPDX-License-Identifier: MIT */
/*
 * Messages between the plugin in charon and lockgated, over a SOCK_SEQPACKET Unix socket.
 *
 * One packet of the socket is one message: a header, then fields of type, length and value. All
 * numbers are big-endian and stand without padding. Neither side's own types appear here, so that
 * either can be read, tested and replaced without the other.
 *
 *   plugin                                   lockgated
 *     HELLO identity, versions           ->
 *        <- ANSWER status, incarnation in the header
 *     RESUME_SAS handles                 ->     after a lost connection, as often as needed
 *        <- ANSWER status, handles that lockgated lacks
 *     ADD_POLICY ... repeat              ->     every policy again
 *        <- ANSWER status
 *     RESUMED                            ->
 *        <- ANSWER status
 *     GET_SPI source, destination        ->
 *        <- ANSWER status, spi, handle
 *     ADD_SA ...                         ->
 *        <- ANSWER status, handle
 *        <- EXPIRE handle, hard                    (whenever it happens)
 *
 * The plugin asks one thing at a time. An answer has the number of its request; a message that
 * lockgated sends by itself has number 0 and gets no answer.
 *
 * Incarnation: a random number of each start of lockgated. HELLO has 0, the answer to HELLO has the
 * incarnation, and every later message repeats the incarnation. lockgated refuses a message of
 * another incarnation, and the plugin drops one.
 *
 * Handle: the number of a reserved SPI or of an SA. lockgated issues a handle once, over all its
 * starts. Requests and events name an SA by its handle alone. A key crosses the socket once: with
 * ADD_SA. Without the answer to ADD_SA the plugin has no handle, so no RESUME_SAS names the SA, and
 * lockgated removes the SA at RESUMED.
 *
 * An unknown field, a field that comes twice where one is meant, a missing field, or a length that
 * does not fit makes the whole message MALFORMED. Of an unknown version nothing but the header is
 * read. lockgated answers a message of another version in the version of that message: STATUS
 * OTHER_VERSION, and a TEXT that names the package to install.
 */
#ifndef LOCKGATE_PROTOCOL_H_
#define LOCKGATE_PROTOCOL_H_

#include <stdint.h>

/* First word of a message: "LGKM". */
#define LG_MAGIC 0x4c474b4du
/* Version of everything in this file. */
#define LG_VERSION 2
/* Bytes of a message at most, its header included. */
#define LG_MAX_MESSAGE 8192
/* Bytes of the header. */
#define LG_HEADER_BYTES 24
/* Selectors of each end that an SA has at most. */
#define LG_MAX_SELECTORS 64
/* Bytes of a name at most. */
#define LG_MAX_NAME 128
/* Handles of a message at most. */
#define LG_MAX_HANDLES 1000
/* Bytes of the number that identifies a charon. */
#define LG_CHARON_ID_BYTES 16

/*
 * Header:
 *   0  u32  LG_MAGIC
 *   4  u16  LG_VERSION
 *   6  u16  enum lg_kind
 *   8  u32  number of the request; 0 in what lockgated sends by itself
 *  12  u32  bytes of the message, the header included
 *  16  u64  incarnation
 *  24       fields: u16 enum lg_field, u16 bytes of the value, value
 */

enum lg_kind {
	/* The plugin asks; fields in brackets may be missing. */
	LG_HELLO = 1,          /* CHARON_ID, CHARON, PLUGIN */
	LG_GET_SPI = 2,        /* SOURCE (the peer), DESTINATION (we) -> SPI, HANDLE */
	LG_ADD_SA = 3,         /* DIRECTION, SOURCE, DESTINATION, SPI, REQID, MODE, ENCRYPTION, KEY,
	                          INTEGRITY, INTEGRITY_KEY, ESN, WINDOW, ENCAPSULATION, SOFT, HARD,
	                          SOURCE_SELECTOR..., DESTINATION_SELECTOR..., INITIATOR -> HANDLE;
	                          an inbound SA takes the reservation of its SPI: that handle ends */
	LG_UPDATE_SA = 4,      /* HANDLE, NEW_SOURCE, NEW_DESTINATION, ENCAPSULATION (what it becomes),
	                          [REQID] (the new one), [SOURCE_SELECTOR...,
	                          DESTINATION_SELECTOR...] (all of them, if one was the address that
	                          moves; missing: they stay) */
	LG_QUERY_SA = 5,       /* HANDLE -> USE */
	LG_DELETE_SA = 6,      /* HANDLE, also of a reserved SPI */
	LG_ADD_POLICY = 7,     /* DIRECTION, SOURCE, DESTINATION, SOURCE_SELECTOR, DESTINATION_SELECTOR,
	                          ACTION, REQID, SPI (0: a trap), PRIORITY, REPEAT */
	LG_QUERY_POLICY = 8,   /* DIRECTION, SOURCE_SELECTOR, DESTINATION_SELECTOR -> USE */
	LG_DELETE_POLICY = 9,  /* as ADD_POLICY without REPEAT */
	LG_FLUSH_SAS = 10,     /* - ; those of this connection's plugin alone */
	LG_FLUSH_POLICIES = 11,/* - ; likewise */
	/* 12 was REPEATED of version 1. */
	LG_NAME_SA = 13,       /* HANDLE (of an inbound SA), REQID, IKE, CHILD; its pair and its
	                          successors have these names too */
	LG_RESUME_SAS = 14,    /* HANDLES, also of reserved SPIs -> HANDLES: those of them that lockgated
	                          lacks, and those of another charon's SAs; none: no such field */
	LG_RESUMED = 15,       /* - ; the plugin has named all that it has: policies beyond that are
	                          forgotten, and SAs too if this charon put them; those of an earlier
	                          charon stay to their limits, or until others are added */

	/* lockgated answers: STATUS, [TEXT], and what the request says behind the arrow. */
	LG_ANSWER = 0x80,

	/* lockgated tells, number 0. */
	LG_ACQUIRE = 0x101,    /* REQID, SOURCE_SELECTOR, DESTINATION_SELECTOR */
	LG_EXPIRE = 0x102,     /* HANDLE, HARDNESS */
	LG_MAPPING = 0x103,    /* HANDLE, NEW_SOURCE (the peer's new address and port) */
};

enum lg_field {
	LG_STATUS = 1,         /* u16 enum lg_status */
	LG_TEXT = 2,           /* a sentence for the log, UTF-8, at most 512 bytes */
	LG_CHARON = 3,         /* charon's version, "5.9.8" */
	LG_PLUGIN = 4,         /* the plugin's version */
	LG_SOURCE = 5,         /* address, then u16 UDP port: 6 or 18 bytes */
	LG_DESTINATION = 6,    /* likewise */
	LG_SPI = 7,            /* u32 */
	LG_REQID = 8,          /* u32 */
	LG_MODE = 9,           /* u8 enum lg_mode */
	LG_DIRECTION = 10,     /* u8 enum lg_direction */
	LG_ENCRYPTION = 11,    /* u16 IKEv2 transform of type 1 (ENCR) */
	LG_KEY = 12,           /* its key, for AEAD with the salt behind it */
	LG_INTEGRITY = 13,     /* u16 IKEv2 transform of type 3 (INTEG); 0: none, with AEAD */
	LG_INTEGRITY_KEY = 14, /* its key; empty with AEAD */
	LG_ESN = 15,           /* u8: 1 extended sequence numbers, 0 not */
	LG_WINDOW = 16,        /* u32 packets of the replay window; 0: none */
	LG_ENCAPSULATION = 17, /* u8: 1 ESP in UDP, 0 not */
	LG_SOFT = 18,          /* u64 seconds, u64 bytes, u64 packets; 0: no limit */
	LG_HARD = 19,          /* likewise */
	LG_SOURCE_SELECTOR = 20, /* 14 or 38 bytes, see below */
	LG_DESTINATION_SELECTOR = 21,
	LG_INITIATOR = 22,     /* u8: 1 we began the exchange, 0 the peer did */
	LG_REPEAT = 23,        /* u8: 1 it was asked before, in this incarnation, 0 not */
	LG_NEW_SOURCE = 24,    /* as SOURCE */
	LG_NEW_DESTINATION = 25,
	LG_USE = 26,           /* u64 packets, u64 bytes, u64 seconds since the last packet;
	                          ~0: no packet yet */
	LG_ACTION = 27,        /* u8 enum lg_action */
	LG_PRIORITY = 28,      /* u32: class of charon's in the upper 8 bits, number of the
	                          configuration in the lower 24 */
	LG_HARDNESS = 29,      /* u8: 1 hard, 0 soft */
	LG_IKE = 30,           /* the name of the connection in swanctl.conf: 1 to LG_MAX_NAME bytes of
	                          printable ASCII; others come as '?' */
	LG_CHILD = 31,         /* the name of the child, likewise */
	LG_HANDLE = 32,        /* u64, never 0 */
	LG_HANDLES = 33,       /* u64 each: 1 to LG_MAX_HANDLES of them */
	LG_CHARON_ID = 34,     /* LG_CHARON_ID_BYTES random bytes: one life of one charon */
};

/*
 * A selector (RFC 7296, 3.13.1), always ranges:
 *   0  u8   protocol, 0: any
 *   1  u8   0
 *   2  u16  first port, or ICMP type * 256 + code
 *   4  u16  last port
 *   6       first address, last address: 4 or 16 bytes each
 */

enum lg_status {
	LG_DONE = 0,
	LG_REFUSED = 1,        /* see TEXT */
	LG_UNKNOWN = 2,        /* no such SA or policy */
	LG_NO_SUITE = 3,       /* algorithms that lockgated does not have */
	LG_OTHER_INCARNATION = 4,
	LG_OTHER_VERSION = 5,  /* of this protocol */
	LG_MALFORMED = 6,
	LG_TAKEN = 7,          /* another charon is connected, or that SPI is in use */
	LG_KEY_USED = 8,       /* the key was installed before and is not taken again */
};

enum lg_mode {
	LG_TRANSPORT = 1,
	LG_TUNNEL = 2,
};

enum lg_direction {
	LG_INBOUND = 1,
	LG_OUTBOUND = 2,
	LG_FORWARD = 3,        /* policies alone */
};

enum lg_action {
	LG_PROTECT = 1,
	LG_PASS = 2,
	LG_DROP = 3,
};

#endif /* LOCKGATE_PROTOCOL_H_ */
