/* SPDX-License-Identifier: MIT */
#include "message.h"

#include <string.h>

const char *lg_status_name(uint16_t status)
{
	static const char *const names[] = {
		[LG_DONE] = "done",
		[LG_REFUSED] = "refused",
		[LG_UNKNOWN] = "unknown there",
		[LG_NO_SUITE] = "it does not have these algorithms",
		[LG_OTHER_INCARNATION] = "it started anew",
		[LG_OTHER_VERSION] = "another version of the protocol",
		[LG_MALFORMED] = "malformed",
		[LG_TAKEN] = "taken",
		[LG_KEY_USED] = "the key was used before",
	};

	return status < sizeof(names) / sizeof(names[0]) ? names[status] : "unknown status";
}

static void store16(uint8_t *to, uint16_t value)
{
	to[0] = value >> 8;
	to[1] = value;
}

static void store32(uint8_t *to, uint32_t value)
{
	store16(to, value >> 16);
	store16(to + 2, value);
}

static void store64(uint8_t *to, uint64_t value)
{
	store32(to, value >> 32);
	store32(to + 4, value);
}

static uint16_t load16(const uint8_t *from)
{
	return (uint16_t)(from[0] << 8 | from[1]);
}

static uint32_t load32(const uint8_t *from)
{
	return (uint32_t)load16(from) << 16 | load16(from + 2);
}

static uint64_t load64(const uint8_t *from)
{
	return (uint64_t)load32(from) << 32 | load32(from + 4);
}

void lg_begin(struct lg_builder *to, void *bytes, size_t room, enum lg_kind kind)
{
	*to = (struct lg_builder){
		.bytes = bytes,
		.used = LG_HEADER_BYTES,
		.room = room < LG_MAX_MESSAGE ? room : LG_MAX_MESSAGE,
	};
	memset(to->bytes, 0, LG_HEADER_BYTES);
	store32(to->bytes, LG_MAGIC);
	store16(to->bytes + 4, LG_VERSION);
	store16(to->bytes + 6, kind);
}

void lg_put_encoded(struct lg_builder *to, const uint8_t *fields, size_t length)
{
	if (to->failed || length > to->room - to->used) {
		to->failed = true;
		return;
	}
	if (length)
		memcpy(to->bytes + to->used, fields, length);
	to->used += length;
}

void lg_put(struct lg_builder *to, enum lg_field field, const void *value, size_t length)
{
	uint8_t head[4];

	if (length > UINT16_MAX) {
		to->failed = true;
		return;
	}
	store16(head, field);
	store16(head + 2, length);
	lg_put_encoded(to, head, sizeof(head));
	lg_put_encoded(to, value, length);
}

void lg_put_u8(struct lg_builder *to, enum lg_field field, uint8_t value)
{
	lg_put(to, field, &value, sizeof(value));
}

void lg_put_u16(struct lg_builder *to, enum lg_field field, uint16_t value)
{
	uint8_t bytes[2];

	store16(bytes, value);
	lg_put(to, field, bytes, sizeof(bytes));
}

void lg_put_u32(struct lg_builder *to, enum lg_field field, uint32_t value)
{
	uint8_t bytes[4];

	store32(bytes, value);
	lg_put(to, field, bytes, sizeof(bytes));
}

void lg_put_u64(struct lg_builder *to, enum lg_field field, uint64_t value)
{
	uint8_t bytes[8];

	store64(bytes, value);
	lg_put(to, field, bytes, sizeof(bytes));
}

void lg_put_u64s(struct lg_builder *to, enum lg_field field, const uint64_t values[3])
{
	uint8_t bytes[24];

	for (int i = 0; i < 3; i++)
		store64(bytes + 8 * i, values[i]);
	lg_put(to, field, bytes, sizeof(bytes));
}

void lg_put_handles(struct lg_builder *to, const uint64_t *handles, size_t count)
{
	uint8_t bytes[8 * LG_MAX_HANDLES];

	if (count > LG_MAX_HANDLES) {
		to->failed = true;
		return;
	}
	for (size_t i = 0; i < count; i++)
		store64(bytes + 8 * i, handles[i]);
	lg_put(to, LG_HANDLES, bytes, 8 * count);
}

void lg_put_name(struct lg_builder *to, enum lg_field field, const char *name)
{
	uint8_t bytes[LG_MAX_NAME];
	size_t length;

	for (length = 0; length < sizeof(bytes) && name[length]; length++) {
		const unsigned char byte = name[length];

		bytes[length] = byte < ' ' || byte > '~' ? '?' : byte;
	}
	if (!length)
		bytes[length++] = '?';
	lg_put(to, field, bytes, length);
}

void lg_put_address(struct lg_builder *to, enum lg_field field, const struct lg_address *value)
{
	uint8_t bytes[18];

	if (value->length != 4 && value->length != 16) {
		to->failed = true;
		return;
	}
	memcpy(bytes, value->bytes, value->length);
	store16(bytes + value->length, value->port);
	lg_put(to, field, bytes, value->length + 2u);
}

void lg_put_selector(struct lg_builder *to, enum lg_field field, const struct lg_selector *value)
{
	uint8_t bytes[38];

	if (value->length != 4 && value->length != 16) {
		to->failed = true;
		return;
	}
	bytes[0] = value->protocol;
	bytes[1] = 0;
	store16(bytes + 2, value->first_port);
	store16(bytes + 4, value->last_port);
	memcpy(bytes + 6, value->first, value->length);
	memcpy(bytes + 6 + value->length, value->last, value->length);
	lg_put(to, field, bytes, 6u + 2u * value->length);
}

void lg_finish(struct lg_builder *to, uint32_t number, uint64_t incarnation)
{
	store32(to->bytes + 8, number);
	store32(to->bytes + 12, to->used);
	store64(to->bytes + 16, incarnation);
}

enum lg_parsed lg_parse(struct lg_view *view, const uint8_t *bytes, size_t length)
{
	uint16_t field;
	const uint8_t *value;
	size_t at = 0, of_value, end = 0;

	memset(view, 0, sizeof(*view));
	if (length < LG_HEADER_BYTES || length > LG_MAX_MESSAGE || load32(bytes) != LG_MAGIC)
		return LG_PARSED_WRONG;
	view->version = load16(bytes + 4);
	view->kind = load16(bytes + 6);
	view->number = load32(bytes + 8);
	view->incarnation = load64(bytes + 16);
	if (view->version != LG_VERSION)
		return LG_PARSED_OTHER_VERSION;
	if (load32(bytes + 12) != length)
		return LG_PARSED_WRONG;
	view->fields = bytes + LG_HEADER_BYTES;
	view->length = length - LG_HEADER_BYTES;
	while (lg_next(view, &at, &field, &value, &of_value))
		end = at;
	return end == view->length ? LG_PARSED : LG_PARSED_WRONG;
}

bool lg_next(const struct lg_view *view, size_t *at, uint16_t *field, const uint8_t **value,
	     size_t *length)
{
	size_t left = view->length - *at;

	if (left < 4)
		return false;
	*field = load16(view->fields + *at);
	*length = load16(view->fields + *at + 2);
	if (*length > left - 4)
		return false;
	*value = view->fields + *at + 4;
	*at += 4 + *length;
	return true;
}

bool lg_has_just(const struct lg_view *view, uint64_t needed, uint64_t allowed)
{
	uint64_t seen = 0;
	uint16_t field;
	const uint8_t *value;
	size_t at = 0, length;

	while (lg_next(view, &at, &field, &value, &length)) {
		if (field > 63 || !(LG_FIELD(field) & (needed | allowed) & ~seen))
			return false;
		seen |= LG_FIELD(field);
	}
	return (seen & needed) == needed;
}

const uint8_t *lg_find(const struct lg_view *view, enum lg_field field, size_t *length)
{
	uint16_t found;
	const uint8_t *value;
	size_t at = 0;

	while (lg_next(view, &at, &found, &value, length))
		if (found == field)
			return value;
	return NULL;
}

static const uint8_t *find_sized(const struct lg_view *view, enum lg_field field, size_t size)
{
	size_t length;
	const uint8_t *value = lg_find(view, field, &length);

	return value && length == size ? value : NULL;
}

bool lg_read_u8(const struct lg_view *view, enum lg_field field, uint8_t *value)
{
	const uint8_t *found = find_sized(view, field, 1);

	if (found)
		*value = *found;
	return found;
}

bool lg_read_u16(const struct lg_view *view, enum lg_field field, uint16_t *value)
{
	const uint8_t *found = find_sized(view, field, 2);

	if (found)
		*value = load16(found);
	return found;
}

bool lg_read_u32(const struct lg_view *view, enum lg_field field, uint32_t *value)
{
	const uint8_t *found = find_sized(view, field, 4);

	if (found)
		*value = load32(found);
	return found;
}

uint64_t lg_decode_u64(const uint8_t *value)
{
	return load64(value);
}

bool lg_read_u64(const struct lg_view *view, enum lg_field field, uint64_t *value)
{
	const uint8_t *found = find_sized(view, field, 8);

	if (found)
		*value = load64(found);
	return found;
}

bool lg_read_u64s(const struct lg_view *view, enum lg_field field, uint64_t values[3])
{
	const uint8_t *found = find_sized(view, field, 24);

	for (int i = 0; found && i < 3; i++)
		values[i] = load64(found + 8 * i);
	return found;
}

bool lg_decode_address(const uint8_t *value, size_t length, struct lg_address *address)
{
	memset(address, 0, sizeof(*address));
	if (length != 6 && length != 18)
		return false;
	address->length = length - 2;
	memcpy(address->bytes, value, address->length);
	address->port = load16(value + address->length);
	return true;
}

bool lg_decode_selector(const uint8_t *value, size_t length, struct lg_selector *selector)
{
	memset(selector, 0, sizeof(*selector));
	if (length != 14 && length != 38)
		return false;
	selector->protocol = value[0];
	selector->first_port = load16(value + 2);
	selector->last_port = load16(value + 4);
	selector->length = (length - 6) / 2;
	memcpy(selector->first, value + 6, selector->length);
	memcpy(selector->last, value + 6 + selector->length, selector->length);
	return true;
}

bool lg_read_address(const struct lg_view *view, enum lg_field field, struct lg_address *value)
{
	size_t length;
	const uint8_t *found = lg_find(view, field, &length);

	return found && lg_decode_address(found, length, value);
}

bool lg_read_selector(const struct lg_view *view, enum lg_field field,
		      struct lg_selector *value)
{
	size_t length;
	const uint8_t *found = lg_find(view, field, &length);

	return found && lg_decode_selector(found, length, value);
}

bool lg_same_host(const struct lg_address *a, const struct lg_address *b)
{
	return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}
