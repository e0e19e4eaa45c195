/* SPDX-License-Identifier: MIT */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"
#include "moved.h"

#define SPI_TRIES 64
/* Refused policies that are asked for again at a time. */
#define LG_AGAIN 16
/* Time to repeat an SA or a policy, of which there may be very many. */
#define LG_REPEAT_MS 5

struct lg_session {
	struct lg_link *link;
	struct lg_ledger *ledger;
	struct lg_session_calls calls;
	/* The last incarnation that took the ledger; 0: none yet. */
	uint64_t incarnation;
	/* It was logged that keys are in memory that can be swapped out. */
	bool told_unlocked;
	/* Refusals are not logged: they were. */
	bool is_quiet;
	/* When charon knows the trap that it has put last, in milliseconds. */
	int64_t settled_at;
};

static const char *status_name(uint16_t status)
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

/* Turns an answer into a result, and logs what was refused. */
static enum lg_result judge(struct lg_session *session, enum lg_asked asked,
			    const struct lg_answer *answer, const char *what)
{
	if (asked != LG_ASKED) {
		lg_link_log(session->link, "%s: no answer of lockgated", what);
		return LG_RESULT_DOWN;
	}
	if (answer->status == LG_DONE)
		return LG_RESULT_DONE;
	if (!session->is_quiet)
		lg_link_log(session->link, "%s: lockgated says: %s%s%s", what,
			    status_name(answer->status), answer->text[0] ? ": " : "", answer->text);
	return answer->status == LG_UNKNOWN ? LG_RESULT_UNKNOWN : LG_RESULT_REFUSED;
}

static enum lg_result ask(struct lg_session *session, struct lg_builder *request,
			  struct lg_answer *answer, const char *what)
{
	enum lg_asked asked = lg_link_ask(session->link, request, answer);

	return judge(session, asked, answer, what);
}

/* Begins a request once there is a connection; false without one. */
static bool begin(struct lg_session *session, struct lg_builder *request, enum lg_kind kind)
{
	if (!lg_link_up(session->link))
		return false;
	lg_link_begin(session->link, request, kind);
	return true;
}

static void put_id(struct lg_builder *request, const struct lg_sa_id *id)
{
	lg_put_address(request, LG_SOURCE, &id->source);
	lg_put_address(request, LG_DESTINATION, &id->destination);
	lg_put_u32(request, LG_SPI, id->spi);
}

static bool is_live(const struct lg_session *session, const struct lg_entry *entry)
{
	return !entry->lost && entry->incarnation &&
	       entry->incarnation == lg_link_incarnation(session->link);
}

/* --- what is lost ----------------------------------------------------------------------------- */

enum end {
	ENDS_SOON,
	ENDED,
};

static void tell_expired(struct lg_session *session, const struct lg_entry *entry, enum end end)
{
	struct lg_event event = {
		.kind = LG_EXPIRE,
		.spi = entry->spi,
		.host = entry->destination,
		.hard = end == ENDED,
	};

	session->calls.event(session->calls.owner, &event);
}

/*
 * Gives an SA up. charon finds a CHILD_SA by either SPI, and one request to renew it is enough: the
 * inbound one. The end of an SA is told for both, because one of them may be all there is.
 */
static void lose(struct lg_session *session, struct lg_entry *entry, enum end end)
{
	lg_ledger_wipe_keys(session->ledger, entry);
	if (entry->lost)
		return;
	entry->lost = true;
	entry->tell_at = lg_now() + (end == ENDED ? LG_REMIND_MS : LG_RENEW_MS);
	if (end == ENDED || entry->direction == LG_INBOUND)
		tell_expired(session, entry, end);
}

/* --- repeating -------------------------------------------------------------------------------- */

static enum lg_result ask_to_delete(struct lg_session *session, const struct lg_sa_id *id)
{
	struct lg_builder request;
	struct lg_answer answer;

	if (!begin(session, &request, LG_DELETE_SA))
		return LG_RESULT_DOWN;
	put_id(&request, id);
	return ask(session, &request, &answer, "deleting an SA");
}

/* Ends an SA that lockgated has; false: the link broke. */
static bool end_sa(struct lg_session *session, struct lg_entry *entry)
{
	const struct lg_view view = { .fields = entry->fields, .length = entry->length };
	struct lg_sa_id id = { .destination = entry->destination, .spi = entry->spi };

	if (!lg_read_address(&view, LG_SOURCE, &id.source) ||
	    ask_to_delete(session, &id) == LG_RESULT_DOWN)
		return false;
	lose(session, entry, ENDED);
	return true;
}

/* A refused SA may run on in lockgated, and charon makes another one: it ends there too. */
static bool repeat_sa(struct lg_session *session, struct lg_entry *entry)
{
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_begin(session->link, &request, LG_ADD_SA);
	lg_put_encoded(&request, entry->fields, entry->length);
	lg_put_encoded(&request, entry->keys, entry->keys_length);
	lg_put_u8(&request, LG_REPEAT, 1);
	switch (ask(session, &request, &answer, "repeating an SA")) {
	case LG_RESULT_DONE:
		return true;
	case LG_RESULT_DOWN:
		return false;
	case LG_RESULT_REFUSED:
	case LG_RESULT_UNKNOWN:
		return end_sa(session, entry);
	}
	return true;
}

static bool has_spi(const struct lg_entry *policy)
{
	const struct lg_view view = { .fields = policy->fields, .length = policy->length };
	uint32_t spi;

	return lg_read_u32(&view, LG_SPI, &spi) && spi != 0;
}

/* The SA of a policy; NULL: it is a trap or a shunt, or the SA is gone. */
static struct lg_entry *sa_of(struct lg_session *session, const struct lg_entry *policy)
{
	const struct lg_view view = { .fields = policy->fields, .length = policy->length };
	struct lg_address destination;
	struct lg_entry *sa;
	uint32_t spi;

	if (!lg_read_u32(&view, LG_SPI, &spi) || !spi ||
	    !lg_read_address(&view, LG_DESTINATION, &destination))
		return NULL;
	sa = lg_ledger_sa(session->ledger, spi, &destination);
	return sa && sa->kind == LG_ENTRY_SA && !sa->lost ? sa : NULL;
}

static bool repeat_policy(struct lg_session *session, struct lg_entry *entry, uint64_t incarnation)
{
	struct lg_builder request;
	struct lg_answer answer;
	struct lg_entry *sa;

	lg_link_begin(session->link, &request, LG_ADD_POLICY);
	lg_put_encoded(&request, entry->fields, entry->length);
	/* The policy of a lost SA claims nothing. */
	lg_put_u8(&request, LG_REPEAT,
		  entry->incarnation == incarnation && (!has_spi(entry) || sa_of(session, entry)));
	switch (ask(session, &request, &answer, "repeating a policy")) {
	case LG_RESULT_DONE:
		entry->incarnation = incarnation;
		return true;
	case LG_RESULT_DOWN:
		return false;
	case LG_RESULT_REFUSED:
	case LG_RESULT_UNKNOWN:
		/* charon is told by the end of the SA. Of a trap it cannot be; lockgated may have
		 * another configuration later. */
		entry->incarnation = 0;
		entry->tell_at = lg_now() + LG_REMIND_MS;
		sa = sa_of(session, entry);
		return !sa || end_sa(session, sa);
	}
	return true;
}

/* Asks again for policies that were refused, a few at a time. */
static void ask_again(struct lg_session *session)
{
	const uint64_t incarnation = lg_link_incarnation(session->link);
	int64_t now = lg_now();
	struct lg_entry *entry;
	int asked = 0;

	for (entry = lg_ledger_first(session->ledger); entry && asked < LG_AGAIN; entry = entry->next) {
		if (entry->kind != LG_ENTRY_POLICY || entry->incarnation || has_spi(entry) ||
		    now < entry->tell_at)
			continue;
		asked++;
		session->is_quiet = true;
		if (!repeat_policy(session, entry, incarnation))
			asked = LG_AGAIN;
		session->is_quiet = false;
	}
}

static void on_tick(void *owner)
{
	struct lg_session *session = owner;
	struct lg_entry *entry;
	int64_t now = lg_now();

	/* Renewing needs lockgated; until it is back there is no use in it. */
	if (!lg_link_incarnation(session->link))
		return;
	for (entry = lg_ledger_first(session->ledger); entry; entry = entry->next) {
		if (entry->kind != LG_ENTRY_SA || !entry->lost || now < entry->tell_at)
			continue;
		entry->tell_at = now + LG_REMIND_MS;
		tell_expired(session, entry, ENDED);
	}
	ask_again(session);
}

/* Forgets reservations and gives up SAs of incarnations that are gone. */
static void give_up_others(struct lg_session *session, uint64_t incarnation)
{
	struct lg_entry *entry, *next;
	size_t lost = 0;

	for (entry = lg_ledger_first(session->ledger); entry; entry = next) {
		next = entry->next;
		if (entry->kind == LG_ENTRY_POLICY || entry->incarnation == incarnation)
			continue;
		if (entry->kind == LG_ENTRY_SPI) {
			lg_ledger_drop(session->ledger, entry);
			continue;
		}
		lost += !entry->lost;
		lose(session, entry, ENDS_SOON);
	}
	if (lost)
		lg_link_log(session->link,
			    "lockgated started anew without its %zu SAs: charon makes new ones",
			    lost);
}

/* Asks lockgated to note the names of an SA, which the ledger has by its present ends. */
static enum lg_result ask_to_name(struct lg_session *session, const struct lg_entry *entry)
{
	const struct lg_view view = { .fields = entry->fields, .length = entry->length };
	struct lg_builder request;
	struct lg_answer answer;
	const uint8_t *value;
	uint16_t field;
	size_t at = 0, length;

	lg_link_begin(session->link, &request, LG_NAME_SA);
	while (lg_next(&view, &at, &field, &value, &length))
		if (field == LG_SOURCE || field == LG_DESTINATION || field == LG_SPI ||
		    field == LG_REQID)
			lg_put(&request, field, value, length);
	lg_put_encoded(&request, entry->names, entry->names_length);
	return ask(session, &request, &answer, "naming an SA");
}

/* Names that were told while there was no answer are told again; false: the link broke. */
static bool repeat_names(struct lg_session *session, const struct lg_entry *entry)
{
	return !entry->names || entry->lost || ask_to_name(session, entry) != LG_RESULT_DOWN;
}

/*
 * 1. SAs of others are lost, 2. SAs of this one, their names and policies are repeated, 3. that was
 * all.
 */
static bool on_connected(void *owner, uint64_t incarnation)
{
	struct lg_session *session = owner;
	struct lg_builder request;
	struct lg_answer answer;
	struct lg_entry *entry;
	bool still_up = true;

	if (session->incarnation != incarnation)
		give_up_others(session, incarnation);
	session->incarnation = incarnation;
	lg_link_extend(session->link, LG_REPEAT_MS *
					      (lg_ledger_count(session->ledger, LG_ENTRY_SA) +
					       lg_ledger_count(session->ledger, LG_ENTRY_POLICY)));
	for (entry = lg_ledger_first(session->ledger); entry && still_up; entry = entry->next) {
		if (entry->kind == LG_ENTRY_POLICY)
			still_up = repeat_policy(session, entry, incarnation);
		else if (entry->kind == LG_ENTRY_SA && is_live(session, entry))
			still_up = repeat_sa(session, entry) && repeat_names(session, entry);
	}
	if (!still_up)
		return false;
	lg_link_begin(session->link, &request, LG_REPEATED);
	return ask(session, &request, &answer, "repeating") == LG_RESULT_DONE;
}

/* --- SAs -------------------------------------------------------------------------------------- */

enum lg_result lg_session_spi(struct lg_session *session, const struct lg_address *source,
			      const struct lg_address *destination, uint32_t *spi)
{
	enum lg_result result;
	struct lg_builder request;
	struct lg_answer answer;
	struct lg_entry *entry;
	int tries = 0;

	lg_link_lock(session->link);
	do {
		result = LG_RESULT_DOWN;
		if (!begin(session, &request, LG_GET_SPI))
			break;
		lg_put_address(&request, LG_SOURCE, source);
		lg_put_address(&request, LG_DESTINATION, destination);
		result = ask(session, &request, &answer, "getting an SPI");
		/* A new incarnation may choose a number that charon still has from the last one. */
	} while (result == LG_RESULT_DONE && tries++ < SPI_TRIES &&
		 lg_ledger_sa(session->ledger, answer.spi, destination));
	if (result == LG_RESULT_DONE) {
		*spi = answer.spi;
		entry = lg_ledger_new(session->ledger, LG_ENTRY_SPI, NULL, 0);
		if (entry) {
			entry->spi = answer.spi;
			entry->destination = *destination;
			entry->direction = LG_INBOUND;
			entry->incarnation = session->incarnation;
			lg_ledger_keep(session->ledger, entry);
		}
	}
	lg_link_unlock(session->link);
	return result;
}

/* Keeps an SA that was accepted, in place of the reservation of its SPI. */
static void keep_sa(struct lg_session *session, struct lg_entry *entry)
{
	struct lg_entry *reserved = lg_ledger_reserved(session->ledger, entry->spi);
	struct lg_entry *before = lg_ledger_sa(session->ledger, entry->spi, &entry->destination);

	if (before && before->kind == LG_ENTRY_SA && before->lost)
		lg_ledger_drop(session->ledger, before);
	if (reserved && entry->direction == LG_INBOUND)
		lg_ledger_drop(session->ledger, reserved);
	entry->incarnation = session->incarnation;
	lg_ledger_keep(session->ledger, entry);
}

static struct lg_entry *new_sa(struct lg_session *session, const struct lg_sa_id *id,
			       const struct lg_builder *fields, const struct lg_keys *keys)
{
	struct lg_entry *entry;

	if (fields->failed)
		return NULL;
	entry = lg_ledger_new(session->ledger, LG_ENTRY_SA, fields->bytes + LG_HEADER_BYTES,
			      fields->used - LG_HEADER_BYTES);
	if (!entry)
		return NULL;
	entry->spi = id->spi;
	entry->destination = id->destination;
	if (!lg_ledger_set_keys(session->ledger, entry, keys->key, keys->key_length,
				keys->integrity, keys->integrity_length)) {
		lg_ledger_drop(session->ledger, entry);
		return NULL;
	}
	if (lg_ledger_unlocked(session->ledger) && !session->told_unlocked) {
		lg_link_log(session->link, "keys are in memory that can be swapped out: locking "
					   "failed (raise LimitMEMLOCK of charon)");
		session->told_unlocked = true;
	}
	return entry;
}

enum lg_result lg_session_add_sa(struct lg_session *session, const struct lg_sa_id *id,
				 enum lg_direction direction, const struct lg_builder *fields,
				 const struct lg_keys *keys)
{
	enum lg_result result = LG_RESULT_DOWN;
	struct lg_builder request;
	struct lg_answer answer;
	struct lg_entry *entry;

	lg_link_lock(session->link);
	entry = new_sa(session, id, fields, keys);
	if (!entry) {
		lg_link_log(session->link, "adding an SA: keys or selectors are too long");
		result = LG_RESULT_REFUSED;
	} else if (begin(session, &request, LG_ADD_SA)) {
		entry->direction = direction;
		lg_put_encoded(&request, entry->fields, entry->length);
		lg_put_encoded(&request, entry->keys, entry->keys_length);
		lg_put_u8(&request, LG_REPEAT, 0);
		result = ask(session, &request, &answer, "adding an SA");
	}
	/* charon goes on without the outbound SA of a rekeying, and would send nothing until the next
	 * one. */
	if (result == LG_RESULT_DOWN && direction == LG_OUTBOUND)
		tell_expired(session, entry, ENDED);
	if (result == LG_RESULT_DONE)
		keep_sa(session, entry);
	else if (entry)
		lg_ledger_drop(session->ledger, entry);
	lg_link_unlock(session->link);
	return result;
}

/* The SA if this incarnation has it. Connects first, so that the answer is about this one. */
static struct lg_entry *live_sa(struct lg_session *session, const struct lg_sa_id *id)
{
	struct lg_entry *entry;

	lg_link_up(session->link);
	entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
	return entry && is_live(session, entry) ? entry : NULL;
}

static enum lg_result ask_to_move(struct lg_session *session, const struct lg_sa_id *id,
				  const struct lg_move *move, const struct lg_builder *selectors)
{
	struct lg_builder request;
	struct lg_answer answer;

	if (!begin(session, &request, LG_UPDATE_SA))
		return LG_RESULT_DOWN;
	put_id(&request, id);
	lg_put_address(&request, LG_NEW_SOURCE, &move->source);
	lg_put_address(&request, LG_NEW_DESTINATION, &move->destination);
	lg_put_u8(&request, LG_ENCAPSULATION, move->encapsulation);
	if (move->reqid)
		lg_put_u32(&request, LG_REQID, move->reqid);
	if (selectors)
		lg_put_selectors(&request, selectors);
	return ask(session, &request, &answer, "moving an SA");
}

/*
 * Moves an SA. charon takes it as moved whatever the result is, so the ledger does too: it is how
 * charon names the SA from then on. One that lockgated does not move is ended there.
 */
enum lg_result lg_session_update_sa(struct lg_session *session, const struct lg_sa_id *id,
				    const struct lg_move *move)
{
	enum lg_result result = LG_RESULT_UNKNOWN;
	uint8_t bytes[LG_MAX_MESSAGE];
	struct lg_builder after;
	struct lg_entry *entry;
	bool selectors, live;

	lg_link_lock(session->link);
	live = live_sa(session, id);
	entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
	if (entry && entry->kind == LG_ENTRY_SA) {
		lg_begin(&after, bytes, sizeof(bytes), LG_ADD_SA);
		selectors = lg_rewrite_moved(entry, id, move, &after);
		if (live)
			result = ask_to_move(session, id, move, selectors ? &after : NULL);
		if (live && (result == LG_RESULT_REFUSED || result == LG_RESULT_UNKNOWN))
			ask_to_delete(session, id);
		entry->destination = move->destination;
		if (after.failed ||
		    !lg_ledger_rewrite(session->ledger, entry, after.bytes + LG_HEADER_BYTES,
				       after.used - LG_HEADER_BYTES) ||
		    (live && (result == LG_RESULT_REFUSED || result == LG_RESULT_UNKNOWN)))
			lose(session, entry, ENDED);
	}
	lg_link_unlock(session->link);
	return result;
}

static void read_use(const struct lg_answer *answer, struct lg_use *use)
{
	use->packets = answer->use[0];
	use->bytes = answer->use[1];
	use->idle = answer->use[2];
}

enum lg_result lg_session_query_sa(struct lg_session *session, const struct lg_sa_id *id,
				   struct lg_use *use)
{
	enum lg_result result = LG_RESULT_UNKNOWN;
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_lock(session->link);
	if (live_sa(session, id) && begin(session, &request, LG_QUERY_SA)) {
		put_id(&request, id);
		result = ask(session, &request, &answer, "asking for an SA's use");
		if (result == LG_RESULT_DONE)
			read_use(&answer, use);
	}
	lg_link_unlock(session->link);
	return result;
}

enum lg_result lg_session_delete_sa(struct lg_session *session, const struct lg_sa_id *id)
{
	enum lg_result result = LG_RESULT_DONE;
	struct lg_entry *entry;
	bool live;

	lg_link_lock(session->link);
	/* Of another incarnation's SPI this one knows nothing, or something else. */
	live = live_sa(session, id);
	entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
	if (live)
		result = ask_to_delete(session, id);
	if (entry)
		lg_ledger_drop(session->ledger, entry);
	lg_link_unlock(session->link);
	return result;
}

/* Policies are flushed by themselves, SAs and reserved SPIs together. */
static void drop_all(struct lg_session *session, enum lg_kind kind)
{
	struct lg_entry *entry, *next;

	for (entry = lg_ledger_first(session->ledger); entry; entry = next) {
		next = entry->next;
		if ((entry->kind == LG_ENTRY_POLICY) == (kind == LG_FLUSH_POLICIES))
			lg_ledger_drop(session->ledger, entry);
	}
}

static enum lg_result flush(struct lg_session *session, enum lg_kind kind)
{
	/* Without a connection the next one sees to it: what is not repeated is dropped. */
	enum lg_result result = LG_RESULT_DONE;
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_lock(session->link);
	drop_all(session, kind);
	if (begin(session, &request, kind))
		result = ask(session, &request, &answer, "flushing");
	lg_link_unlock(session->link);
	return result;
}

/* The ledger has the names before lockgated is asked: a connection that breaks repeats them. */
enum lg_result lg_session_name_sa(struct lg_session *session, const struct lg_sa_id *id,
				  const char *ike, const char *child)
{
	enum lg_result result = LG_RESULT_UNKNOWN;
	uint8_t bytes[LG_HEADER_BYTES + 2 * (4 + LG_MAX_NAME)];
	struct lg_builder names;
	struct lg_entry *entry;

	lg_begin(&names, bytes, sizeof(bytes), LG_NAME_SA);
	lg_put_name(&names, LG_IKE, ike);
	lg_put_name(&names, LG_CHILD, child);
	lg_link_lock(session->link);
	entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
	/* One that is gone by now needs no name. */
	if (entry && entry->kind == LG_ENTRY_SA && !entry->lost && !names.failed &&
	    lg_ledger_name(entry, names.bytes + LG_HEADER_BYTES, names.used - LG_HEADER_BYTES)) {
		/* Connecting repeats the SA with its names, or loses it. */
		if (!lg_link_up(session->link))
			result = LG_RESULT_DOWN;
		else if (is_live(session, entry))
			result = ask_to_name(session, entry);
	}
	lg_link_unlock(session->link);
	return result;
}

enum lg_result lg_session_flush_sas(struct lg_session *session)
{
	return flush(session, LG_FLUSH_SAS);
}

/* --- policies --------------------------------------------------------------------------------- */

/* A trap or a shunt, or one whose SA charon has and the next connection repeats. */
static bool may_wait(struct lg_session *session, const struct lg_entry *policy)
{
	return !has_spi(policy) || sa_of(session, policy);
}

enum lg_result lg_session_add_policy(struct lg_session *session, const struct lg_builder *fields)
{
	enum lg_result result = LG_RESULT_DOWN;
	struct lg_entry *entry = NULL;
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_lock(session->link);
	if (!fields->failed)
		entry = lg_ledger_new(session->ledger, LG_ENTRY_POLICY,
				      fields->bytes + LG_HEADER_BYTES,
				      fields->used - LG_HEADER_BYTES);
	if (!entry) {
		result = LG_RESULT_REFUSED;
	} else if (begin(session, &request, LG_ADD_POLICY)) {
		lg_put_encoded(&request, entry->fields, entry->length);
		lg_put_u8(&request, LG_REPEAT, 0);
		result = ask(session, &request, &answer, "adding a policy");
		entry->incarnation = session->incarnation;
		session->settled_at = lg_now() + LG_SETTLE_MS;
	}
	if (result == LG_RESULT_DOWN && entry && may_wait(session, entry)) {
		lg_link_log(session->link, "a policy waits for lockgated");
		entry->incarnation = 0;
		result = LG_RESULT_DONE;
	}
	if (result == LG_RESULT_DONE)
		lg_ledger_keep(session->ledger, entry);
	else if (entry)
		lg_ledger_drop(session->ledger, entry);
	lg_link_unlock(session->link);
	return result;
}

/*
 * Asks for the end of a policy that the ledger has no more. charon adds a trap anew before it takes
 * the one that it replaces away; lockgated has one of a name, and that is the twin then.
 */
static enum lg_result ask_to_forget(struct lg_session *session, const uint8_t *bytes, size_t length,
				    uint64_t incarnation)
{
	struct lg_entry *twin = lg_ledger_twin(session->ledger, bytes, length);
	struct lg_builder request;
	struct lg_answer answer;

	if (twin) {
		if (memcmp(twin->fields, bytes, length) == 0)
			twin->incarnation = incarnation;
		else
			/* lockgated may have the other PRIORITY. */
			repeat_policy(session, twin, incarnation);
		return LG_RESULT_DONE;
	}
	if (!begin(session, &request, LG_DELETE_POLICY))
		return LG_RESULT_DONE;
	lg_put_encoded(&request, bytes, length);
	return ask(session, &request, &answer, "deleting a policy");
}

enum lg_result lg_session_delete_policy(struct lg_session *session,
					const struct lg_builder *fields)
{
	const uint8_t *bytes = fields->bytes + LG_HEADER_BYTES;
	const size_t length = fields->used - LG_HEADER_BYTES;
	enum lg_result result = LG_RESULT_UNKNOWN;
	struct lg_entry *entry;
	uint64_t incarnation;
	bool live;

	lg_link_lock(session->link);
	lg_link_up(session->link);
	entry = lg_ledger_policy(session->ledger, bytes, length);
	if (entry) {
		incarnation = entry->incarnation;
		live = is_live(session, entry);
		lg_ledger_drop(session->ledger, entry);
		result = live ? ask_to_forget(session, bytes, length, incarnation) : LG_RESULT_DONE;
	}
	lg_link_unlock(session->link);
	return result;
}

enum lg_result lg_session_query_policy(struct lg_session *session,
				       const struct lg_builder *fields, struct lg_use *use)
{
	enum lg_result result = LG_RESULT_DOWN;
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_lock(session->link);
	if (begin(session, &request, LG_QUERY_POLICY)) {
		lg_put_encoded(&request, fields->bytes + LG_HEADER_BYTES,
			       fields->used - LG_HEADER_BYTES);
		result = ask(session, &request, &answer, "asking for a policy's use");
		if (result == LG_RESULT_DONE)
			read_use(&answer, use);
	}
	lg_link_unlock(session->link);
	return result;
}

enum lg_result lg_session_flush_policies(struct lg_session *session)
{
	return flush(session, LG_FLUSH_POLICIES);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_event(void *owner, const struct lg_event *event)
{
	struct lg_session *session = owner;
	struct lg_event told = *event;

	if (event->kind == LG_ACQUIRE && lg_now() < session->settled_at)
		told.delay_ms = LG_SETTLE_MS;
	session->calls.event(session->calls.owner, &told);
}

static void on_log(void *owner, const char *text)
{
	struct lg_session *session = owner;

	session->calls.log(session->calls.owner, text);
}

struct lg_session *lg_session_create(const struct lg_link_settings *settings,
				     const struct lg_session_calls *calls)
{
	struct lg_session *session = calloc(1, sizeof(*session));
	struct lg_link_calls inner = {
		.owner = session,
		.event = on_event,
		.connected = on_connected,
		.tick = on_tick,
		.log = on_log,
	};

	if (!session)
		return NULL;
	session->calls = *calls;
	session->ledger = lg_ledger_create();
	session->link = lg_link_create(settings, &inner);
	if (!session->ledger || !session->link || !lg_link_start(session->link)) {
		lg_session_destroy(session);
		return NULL;
	}
	return session;
}

void lg_session_destroy(struct lg_session *session)
{
	if (!session)
		return;
	lg_link_destroy(session->link);
	lg_ledger_destroy(session->ledger);
	free(session);
}

size_t lg_session_count(struct lg_session *session, int kind)
{
	size_t count;

	lg_link_lock(session->link);
	count = lg_ledger_count(session->ledger, kind);
	lg_link_unlock(session->link);
	return count;
}
