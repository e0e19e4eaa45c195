/* SPDX-License-Identifier: MIT */
/*
 * Messages between the plugin in charon and lockgated, over a SOCK_SEQPACKET Unix socket.
 *
 * One packet of the socket is one message: a header, then fields of type, length and value. All
 * numbers are big-endian and stand without padding. Neither side's own types appear here, so that
 * either can be read, tested and replaced without the other.
 *
 *   plugin                                   lockgated
 *     HELLO charon's version             ->
 *        <- ANSWER status, incarnation in the header
 *     GET_SPI source, destination        ->
 *        <- ANSWER status, spi
 *     ADD_SA ...                         ->
 *        <- ANSWER status
 *        <- EXPIRE spi, destination, hard          (whenever it happens)
 *
 * The plugin asks one thing at a time. An answer has the number of its request; a message that
 * lockgated sends by itself has number 0 and gets no answer.
 *
 * Incarnation: a random number that each start of lockgated draws. HELLO has 0, its answer tells
 * it, every later message has it. lockgated refuses a message of another incarnation, and the
 * plugin drops one.
 *
 * An unknown field, a field that comes twice where one is meant, a missing field, or a length that
 * does not fit makes the whole message MALFORMED. Of an unknown version nothing but the header is
 * read.
 */
#ifndef LOCKGATE_PROTOCOL_H_
#define LOCKGATE_PROTOCOL_H_

#include <stdint.h>

/* First word of a message: "LGKM". */
#define LG_MAGIC 0x4c474b4du
/* Version of everything in this file. */
#define LG_VERSION 1
/* Bytes of a message at most, its header included. */
#define LG_MAX_MESSAGE 8192
/* Bytes of the header. */
#define LG_HEADER_BYTES 24
/* Selectors of each end that an SA has at most. */
#define LG_MAX_SELECTORS 64
/* Bytes of a name at most. */
#define LG_MAX_NAME 128

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
	LG_HELLO = 1,          /* CHARON, PLUGIN */
	LG_GET_SPI = 2,        /* SOURCE (the peer), DESTINATION (we) -> SPI */
	LG_ADD_SA = 3,         /* DIRECTION, SOURCE, DESTINATION, SPI, REQID, MODE, ENCRYPTION, KEY,
	                          INTEGRITY, INTEGRITY_KEY, ESN, WINDOW, ENCAPSULATION, SOFT, HARD,
	                          SOURCE_SELECTOR..., DESTINATION_SELECTOR..., INITIATOR, REPEAT */
	LG_UPDATE_SA = 4,      /* SOURCE, DESTINATION, SPI, NEW_SOURCE, NEW_DESTINATION,
	                          ENCAPSULATION (what it becomes), [REQID] (the new one),
	                          [SOURCE_SELECTOR..., DESTINATION_SELECTOR...] (all of them, if one
	                          was the address that moves; missing: they stay) */
	LG_QUERY_SA = 5,       /* SOURCE, DESTINATION, SPI -> USE */
	LG_DELETE_SA = 6,      /* SOURCE, DESTINATION, SPI */
	LG_ADD_POLICY = 7,     /* DIRECTION, SOURCE, DESTINATION, SOURCE_SELECTOR, DESTINATION_SELECTOR,
	                          ACTION, REQID, SPI (0: a trap), PRIORITY, REPEAT */
	LG_QUERY_POLICY = 8,   /* DIRECTION, SOURCE_SELECTOR, DESTINATION_SELECTOR -> USE */
	LG_DELETE_POLICY = 9,  /* as ADD_POLICY without REPEAT */
	LG_FLUSH_SAS = 10,     /* - ; those of this connection's plugin alone */
	LG_FLUSH_POLICIES = 11,/* - ; likewise */
	LG_REPEATED = 12,      /* - ; all that the plugin had of this incarnation has been repeated:
	                          policies beyond that are forgotten, and SAs too if this is the
	                          charon process that was connected last; those of an earlier one
	                          stay to their limits, or until others are added */

	LG_NAME_SA = 13,       /* SOURCE, DESTINATION, SPI (an inbound SA), REQID, IKE, CHILD; its pair
	                          and its successors have these names too */

	/* lockgated answers: STATUS, [TEXT], and what the request says behind the arrow. */
	LG_ANSWER = 0x80,

	/* lockgated tells, number 0. */
	LG_ACQUIRE = 0x101,    /* REQID, SOURCE_SELECTOR, DESTINATION_SELECTOR */
	LG_EXPIRE = 0x102,     /* SPI, DESTINATION, HARDNESS */
	LG_MAPPING = 0x103,    /* SPI, DESTINATION, NEW_SOURCE (the peer's new address and port) */
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
