/* SPDX-License-Identifier: MIT */
/*
 * Messages of protocol.h, written and read.
 *
 * A builder writes into bytes that its caller owns. A view reads bytes that its caller owns, and
 * is valid as long as they are.
 */
#ifndef LOCKGATE_MESSAGE_H_
#define LOCKGATE_MESSAGE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* An address of 4 or 16 bytes with a UDP port. */
struct lg_address {
	uint8_t length;
	uint8_t bytes[16];
	uint16_t port;
};

/* A traffic selector: a protocol (0: any), a range of ports and a range of addresses. */
struct lg_selector {
	uint8_t protocol;
	uint16_t first_port;
	uint16_t last_port;
	uint8_t length;
	uint8_t first[16];
	uint8_t last[16];
};

struct lg_builder {
	uint8_t *bytes;
	size_t used;
	size_t room;
	/* A field did not fit, or its value could not be encoded. */
	bool failed;
};

/* Begins a message; lg_finish completes its header. */
void lg_begin(struct lg_builder *to, void *bytes, size_t room, enum lg_kind kind);
void lg_put(struct lg_builder *to, enum lg_field field, const void *value, size_t length);
void lg_put_u8(struct lg_builder *to, enum lg_field field, uint8_t value);
void lg_put_u16(struct lg_builder *to, enum lg_field field, uint16_t value);
void lg_put_u32(struct lg_builder *to, enum lg_field field, uint32_t value);
void lg_put_u64(struct lg_builder *to, enum lg_field field, uint64_t value);
void lg_put_u64s(struct lg_builder *to, enum lg_field field, const uint64_t values[3]);
/* A name as the protocol has it: cut, printable, never empty. */
void lg_put_name(struct lg_builder *to, enum lg_field field, const char *name);
void lg_put_address(struct lg_builder *to, enum lg_field field, const struct lg_address *value);
void lg_put_selector(struct lg_builder *to, enum lg_field field, const struct lg_selector *value);
/* At most LG_MAX_HANDLES. */
void lg_put_handles(struct lg_builder *to, const uint64_t *handles, size_t count);
/* Appends fields that are already encoded. */
void lg_put_encoded(struct lg_builder *to, const uint8_t *fields, size_t length);
void lg_finish(struct lg_builder *to, uint32_t number, uint64_t incarnation);

struct lg_view {
	uint16_t version;
	uint16_t kind;
	uint32_t number;
	uint64_t incarnation;
	const uint8_t *fields;
	size_t length;
};

enum lg_parsed {
	LG_PARSED = 0,
	/* Of another version: nothing but the header was read. */
	LG_PARSED_OTHER_VERSION,
	LG_PARSED_WRONG,
};

/* A set of fields. */
#define LG_FIELD(field) ((uint64_t)1 << (field))

enum lg_parsed lg_parse(struct lg_view *view, const uint8_t *bytes, size_t length);
/* Each field is in `allowed`, none comes twice, and those of `needed` are there. */
bool lg_has_just(const struct lg_view *view, uint64_t needed, uint64_t allowed);
/* Steps through the fields: false at the end. `at` begins with 0. */
bool lg_next(const struct lg_view *view, size_t *at, uint16_t *field, const uint8_t **value,
	     size_t *length);
/* The value of the first such field; NULL if there is none. */
const uint8_t *lg_find(const struct lg_view *view, enum lg_field field, size_t *length);
/* These are false if the field is missing or its length does not fit. */
bool lg_read_u8(const struct lg_view *view, enum lg_field field, uint8_t *value);
bool lg_read_u16(const struct lg_view *view, enum lg_field field, uint16_t *value);
bool lg_read_u32(const struct lg_view *view, enum lg_field field, uint32_t *value);
bool lg_read_u64(const struct lg_view *view, enum lg_field field, uint64_t *value);
bool lg_read_u64s(const struct lg_view *view, enum lg_field field, uint64_t values[3]);
bool lg_read_address(const struct lg_view *view, enum lg_field field, struct lg_address *value);
bool lg_read_selector(const struct lg_view *view, enum lg_field field,
		      struct lg_selector *value);

/* Reads eight bytes. */
uint64_t lg_decode_u64(const uint8_t *value);
bool lg_decode_address(const uint8_t *value, size_t length, struct lg_address *address);
bool lg_decode_selector(const uint8_t *value, size_t length, struct lg_selector *selector);
/* Of enum lg_status, for a log. */
const char *lg_status_name(uint16_t status);
/* Ports do not count. */
bool lg_same_host(const struct lg_address *a, const struct lg_address *b);

#endif /* LOCKGATE_MESSAGE_H_ */
