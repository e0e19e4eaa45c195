/* SPDX-License-Identifier: MIT */
#include "moved.h"

#include <string.h>

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

bool lg_rewrite_moved(const struct lg_entry *entry, const struct lg_sa_id *id,
			  const struct lg_move *move, struct lg_builder *to)
{
	const struct lg_view view = { .fields = entry->fields, .length = entry->length };
	struct lg_selector moved;
	bool changed = false;
	const uint8_t *value;
	uint16_t field;
	size_t at = 0, length;

	while (lg_next(&view, &at, &field, &value, &length)) {
		if (field == LG_SOURCE)
			lg_put_address(to, LG_SOURCE, &move->source);
		else if (field == LG_DESTINATION)
			lg_put_address(to, LG_DESTINATION, &move->destination);
		else if (field == LG_ENCAPSULATION)
			lg_put_u8(to, LG_ENCAPSULATION, move->encapsulation);
		else if (field == LG_REQID && move->reqid)
			lg_put_u32(to, LG_REQID, move->reqid);
		else if ((field == LG_SOURCE_SELECTOR &&
			  move_selector(value, length, &id->source, &move->source, &moved)) ||
			 (field == LG_DESTINATION_SELECTOR &&
			  move_selector(value, length, &id->destination, &move->destination,
					&moved))) {
			lg_put_selector(to, field, &moved);
			changed = true;
		} else
			lg_put(to, field, value, length);
	}
	return changed;
}

void lg_put_selectors(struct lg_builder *request, const struct lg_builder *sa)
{
	const struct lg_view view = {
		.fields = sa->bytes + LG_HEADER_BYTES,
		.length = sa->used - LG_HEADER_BYTES,
	};
	const uint8_t *value;
	uint16_t field;
	size_t at = 0, length;

	while (lg_next(&view, &at, &field, &value, &length))
		if (field == LG_SOURCE_SELECTOR || field == LG_DESTINATION_SELECTOR)
			lg_put(request, field, value, length);
}
