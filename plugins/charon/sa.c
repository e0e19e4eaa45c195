/* SPDX-License-Identifier: MIT */
#include "sa.h"

#include <string.h>

struct lg_entry *lg_sa_new(const struct lg_sa_id *id, enum lg_direction direction,
			   const struct lg_builder *fields)
{
	const struct lg_view view = {
		.fields = fields->bytes + LG_HEADER_BYTES,
		.length = fields->used - LG_HEADER_BYTES,
	};
	struct lg_entry *entry = NULL;
	uint8_t bytes[LG_MAX_MESSAGE], encapsulation;
	struct lg_builder selectors;
	const uint8_t *value;
	uint16_t field;
	size_t at = 0, length;

	lg_begin(&selectors, bytes, sizeof(bytes), LG_UPDATE_SA);
	while (lg_next(&view, &at, &field, &value, &length))
		if (field == LG_SOURCE_SELECTOR || field == LG_DESTINATION_SELECTOR)
			lg_put(&selectors, field, value, length);
	if (!selectors.failed)
		entry = lg_ledger_new(LG_ENTRY_SA, bytes + LG_HEADER_BYTES,
				      selectors.used - LG_HEADER_BYTES);
	if (!entry)
		return NULL;
	entry->spi = id->spi;
	entry->source = id->source;
	entry->destination = id->destination;
	entry->direction = direction;
	lg_read_u32(&view, LG_REQID, &entry->reqid);
	entry->encapsulation = lg_read_u8(&view, LG_ENCAPSULATION, &encapsulation) && encapsulation;
	return entry;
}

/* A selector that is just the address that moves, moves with it. */
static bool move_selector(const uint8_t *value, size_t length, const struct lg_address *from,
			  const struct lg_address *to, struct lg_selector *moved)
{
	if (!lg_decode_selector(value, length, moved) || moved->length != from->length ||
	    memcmp(moved->first, from->bytes, from->length) != 0 ||
	    memcmp(moved->last, from->bytes, from->length) != 0 || lg_same_host(from, to))
		return false;
	moved->length = to->length;
	memcpy(moved->first, to->bytes, to->length);
	memcpy(moved->last, to->bytes, to->length);
	return true;
}

static bool move_selectors(struct lg_entry *entry, const struct lg_move *move)
{
	const struct lg_view view = { .fields = entry->fields.bytes, .length = entry->fields.length };
	uint8_t bytes[LG_MAX_MESSAGE];
	struct lg_selector moved;
	struct lg_builder after;
	bool changed = false;
	const uint8_t *value;
	uint16_t field;
	size_t at = 0, length;

	lg_begin(&after, bytes, sizeof(bytes), LG_UPDATE_SA);
	while (lg_next(&view, &at, &field, &value, &length)) {
		bool is_source = field == LG_SOURCE_SELECTOR;

		if (move_selector(value, length, is_source ? &entry->source : &entry->destination,
				  is_source ? &move->source : &move->destination, &moved)) {
			lg_put_selector(&after, field, &moved);
			changed = true;
		} else {
			lg_put(&after, field, value, length);
		}
	}
	if (!changed)
		return true;
	entry->moved |= LG_MOVED_SELECTORS;
	return !after.failed && lg_bytes_set(&entry->fields, after.bytes + LG_HEADER_BYTES,
					     after.used - LG_HEADER_BYTES);
}

bool lg_sa_move(struct lg_entry *entry, const struct lg_move *move)
{
	bool fits = move_selectors(entry, move);

	entry->source = move->source;
	entry->destination = move->destination;
	entry->encapsulation = move->encapsulation;
	entry->moved |= LG_MOVED_ENDS;
	if (move->reqid) {
		entry->reqid = move->reqid;
		entry->moved |= LG_MOVED_REQID;
	}
	return fits;
}

void lg_sa_put_move(struct lg_builder *to, const struct lg_entry *entry)
{
	lg_put_address(to, LG_NEW_SOURCE, &entry->source);
	lg_put_address(to, LG_NEW_DESTINATION, &entry->destination);
	lg_put_u8(to, LG_ENCAPSULATION, entry->encapsulation);
	if (entry->moved & LG_MOVED_REQID)
		lg_put_u32(to, LG_REQID, entry->reqid);
	if (entry->moved & LG_MOVED_SELECTORS)
		lg_put_encoded(to, entry->fields.bytes, entry->fields.length);
}
