/* SPDX-License-Identifier: MIT */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"
#include "sa.h"

#define SPI_TRIES 64
/* Refused policies that are put again at a time. */
#define LG_AGAIN 16
/* Time to resume an SA or a policy, of which there may be very many. */
#define LG_RESUME_MS 5

struct lg_session {
	struct lg_link *link;
	struct lg_ledger *ledger;
	struct lg_session_calls calls;
	/* The last incarnation that resumed the ledger; 0: none yet. */
	uint64_t incarnation;
	/* Number of the last RESUME_SAS. */
	uint32_t lump;
	/* Refusals are not logged: they were. */
	bool is_quiet;
	/* When charon knows the trap that it has put last, in milliseconds. */
	int64_t settled_at;
};

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
			    lg_status_name(answer->status), answer->text[0] ? ": " : "", answer->text);
	return answer->status == LG_UNKNOWN ? LG_RESULT_UNKNOWN : LG_RESULT_REFUSED;
}

static enum lg_result ask(struct lg_session *session, struct lg_builder *request,
			  struct lg_answer *answer, const char *what)
{
	const bool fits = !request->failed;
	enum lg_asked asked = lg_link_ask(session->link, request, answer);

	if (fits)
		return judge(session, asked, answer, what);
	lg_link_log(session->link, "%s: keys or selectors are too long for a message", what);
	return LG_RESULT_REFUSED;
}

/* Begins a request once there is a connection; false without one. Connecting may end entries of
 * the ledger, so they are looked up after it. */
static bool begin(struct lg_session *session, struct lg_builder *request, enum lg_kind kind)
{
	if (!lg_link_up(session->link))
		return false;
	lg_link_begin(session->link, request, kind);
	return true;
}

/* Asks something of an SA or of a reserved SPI that needs no more than its handle. */
static enum lg_result ask_of(struct lg_session *session, enum lg_kind kind, uint64_t handle,
			     struct lg_answer *answer, const char *what)
{
	struct lg_builder request;

	lg_link_begin(session->link, &request, kind);
	lg_put_u64(&request, LG_HANDLE, handle);
	return ask(session, &request, answer, what);
}

static bool is_connected(const struct lg_session *session)
{
	return lg_link_incarnation(session->link) != 0;
}

/* --- the end of an SA ------------------------------------------------------------------------- */

/* charon finds a child by either SPI, but only after the last policy of its install: the news waits
 * for that. */
static void tell_expired(struct lg_session *session, const struct lg_entry *entry)
{
	struct lg_event event = {
		.kind = LG_EXPIRE,
		.spi = entry->spi,
		.host = entry->destination,
		.hard = true,
		.delay_ms = LG_SETTLE_MS,
	};

	session->calls.event(session->calls.owner, &event);
}

/* Without a connection the next one does not name the SA, so lockgated deletes it then. */
static void end_sa(struct lg_session *session, struct lg_entry *entry)
{
	struct lg_answer answer;

	if (!entry->lacking && is_connected(session))
		ask_of(session, LG_DELETE_SA, entry->handle, &answer, "deleting an SA");
	tell_expired(session, entry);
	lg_ledger_forget(session->ledger, entry);
	entry->again_at = lg_now() + LG_REMIND_MS;
}

/* Ends an SA and the one of the other direction: charon makes a new child. */
static void end_child(struct lg_session *session, struct lg_entry *entry)
{
	struct lg_entry *partner = entry->partner;

	end_sa(session, entry);
	if (partner)
		end_sa(session, partner);
}

/* --- resuming --------------------------------------------------------------------------------- */

/*
 * Names up to LG_MAX_HANDLES handles, from `*at` on, which becomes the entry to go on with. Marks
 * the entries that lockgated lacks. False: the link broke, or the answer is not about these.
 */
static bool resume_lump(struct lg_session *session, struct lg_entry **at)
{
	uint64_t handles[LG_MAX_HANDLES];
	struct lg_builder request;
	struct lg_answer answer;
	size_t count = 0;

	session->lump++;
	for (; *at && count < LG_MAX_HANDLES; *at = (*at)->next) {
		if (!(*at)->handle)
			continue;
		(*at)->lump = session->lump;
		(*at)->lacking = false;
		handles[count++] = (*at)->handle;
	}
	if (!count)
		return true;
	lg_link_begin(session->link, &request, LG_RESUME_SAS);
	lg_put_handles(&request, handles, count);
	if (ask(session, &request, &answer, "resuming SAs") != LG_RESULT_DONE)
		return false;
	for (size_t i = 0; i < answer.handle_count; i++) {
		struct lg_entry *entry = lg_ledger_handle(session->ledger,
							  lg_decode_u64(answer.handles + 8 * i));

		if (!entry || entry->lump != session->lump || entry->lacking) {
			lg_link_reject(session->link, "it lacks an SA that it was not asked for");
			return false;
		}
		entry->lacking = true;
	}
	return true;
}

/* Forgets reservations and ends the children of SAs that lockgated lacks. */
static void end_lacking(struct lg_session *session, bool is_new)
{
	const size_t sas = lg_ledger_count(session->ledger, LG_ENTRY_SA);
	struct lg_entry *entry, *next;
	size_t lacking = 0;

	for (entry = lg_ledger_first(session->ledger); entry; entry = entry->next)
		lacking += entry->kind == LG_ENTRY_SA && entry->lacking;
	if (lacking)
		lg_link_log(session->link, "lockgated %s %zu of its %zu SAs: charon makes new ones",
			    is_new ? "started anew without" : "lacks", lacking, sas);
	for (entry = lg_ledger_first(session->ledger); entry; entry = next) {
		next = entry->next;
		if (entry->kind == LG_ENTRY_SA && entry->lacking)
			end_child(session, entry);
		else if (entry->kind == LG_ENTRY_SPI && entry->lacking)
			lg_ledger_drop(session->ledger, entry);
	}
}

/* Asks lockgated to move an SA to where the ledger has it. */
static enum lg_result ask_to_move(struct lg_session *session, struct lg_entry *entry)
{
	enum lg_result result;
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_begin(session->link, &request, LG_UPDATE_SA);
	lg_put_u64(&request, LG_HANDLE, entry->handle);
	lg_sa_put_move(&request, entry);
	result = ask(session, &request, &answer, "moving an SA");
	if (result == LG_RESULT_DONE)
		entry->moved = 0;
	return result;
}

/* Asks lockgated to note the names of an SA. They are kept until there is an answer. */
static enum lg_result ask_to_name(struct lg_session *session, struct lg_entry *entry)
{
	enum lg_result result;
	struct lg_builder request;
	struct lg_answer answer;

	lg_link_begin(session->link, &request, LG_NAME_SA);
	lg_put_u64(&request, LG_HANDLE, entry->handle);
	lg_put_u32(&request, LG_REQID, entry->reqid);
	lg_put_encoded(&request, entry->names.bytes, entry->names.length);
	result = ask(session, &request, &answer, "naming an SA");
	if (result != LG_RESULT_DOWN)
		lg_bytes_set(&entry->names, NULL, 0);
	return result;
}

/* Delivers a move and names that lockgated has not received; false: the link broke. */
static bool catch_up(struct lg_session *session, struct lg_entry *entry)
{
	enum lg_result result;

	if (entry->moved) {
		result = ask_to_move(session, entry);
		if (result == LG_RESULT_DOWN)
			return false;
		if (result != LG_RESULT_DONE)
			end_child(session, entry);
	}
	return !entry->names.bytes || ask_to_name(session, entry) != LG_RESULT_DOWN;
}

static struct lg_view view_of(const struct lg_entry *entry)
{
	return (struct lg_view){ .fields = entry->fields.bytes, .length = entry->fields.length };
}

static bool has_spi(const struct lg_entry *policy)
{
	const struct lg_view view = view_of(policy);
	uint32_t spi;

	return lg_read_u32(&view, LG_SPI, &spi) && spi != 0;
}

/* The SA of a policy; NULL: it is a trap or a shunt, or the SA is gone. */
static struct lg_entry *sa_of(struct lg_session *session, const struct lg_entry *policy)
{
	const struct lg_view view = view_of(policy);
	struct lg_address destination;
	struct lg_entry *sa;
	uint32_t spi;

	if (!lg_read_u32(&view, LG_SPI, &spi) || !spi ||
	    !lg_read_address(&view, LG_DESTINATION, &destination))
		return NULL;
	sa = lg_ledger_sa(session->ledger, spi, &destination);
	return sa && sa->kind == LG_ENTRY_SA ? sa : NULL;
}

static bool repeat_policy(struct lg_session *session, struct lg_entry *entry, uint64_t incarnation)
{
	struct lg_builder request;
	struct lg_answer answer;
	struct lg_entry *sa;

	lg_link_begin(session->link, &request, LG_ADD_POLICY);
	lg_put_encoded(&request, entry->fields.bytes, entry->fields.length);
	/* The policy of an SA that is gone claims nothing. */
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
		entry->again_at = lg_now() + LG_REMIND_MS;
		sa = sa_of(session, entry);
		if (sa)
			end_child(session, sa);
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
		    now < entry->again_at)
			continue;
		asked++;
		session->is_quiet = true;
		if (!repeat_policy(session, entry, incarnation))
			asked = LG_AGAIN;
		session->is_quiet = false;
	}
}

/* charon may have looked for a child too early, and the child would be without SAs until it is
 * rekeyed: an SA that charon has not deleted is reported again. */
static void remind(struct lg_session *session)
{
	const int64_t now = lg_now();
	struct lg_entry *entry;

	for (entry = lg_ledger_first(session->ledger); entry; entry = entry->next) {
		if (entry->kind != LG_ENTRY_GONE || now < entry->again_at)
			continue;
		entry->again_at = now + LG_REMIND_MS;
		tell_expired(session, entry);
	}
}

static void on_tick(void *owner)
{
	struct lg_session *session = owner;

	/* A new child needs lockgated. */
	if (!is_connected(session))
		return;
	remind(session);
	ask_again(session);
}

/*
 * 1. SAs are named, and those that lockgated lacks end, 2. moves and names are delivered,
 * 3. policies are put again, 4. that was all.
 */
static bool on_connected(void *owner, uint64_t incarnation)
{
	struct lg_session *session = owner;
	struct lg_entry *entry = lg_ledger_first(session->ledger);
	struct lg_builder request;
	struct lg_answer answer;
	bool still_up = true;

	lg_link_extend(session->link, LG_RESUME_MS *
					      (lg_ledger_count(session->ledger, LG_ENTRY_SA) +
					       lg_ledger_count(session->ledger, LG_ENTRY_POLICY)));
	while (entry && still_up)
		still_up = resume_lump(session, &entry);
	if (!still_up)
		return false;
	end_lacking(session, session->incarnation != incarnation);
	session->incarnation = incarnation;
	for (entry = lg_ledger_first(session->ledger); entry && still_up; entry = entry->next)
		if (entry->kind == LG_ENTRY_SA)
			still_up = catch_up(session, entry);
	for (entry = lg_ledger_first(session->ledger); entry && still_up; entry = entry->next)
		if (entry->kind == LG_ENTRY_POLICY)
			still_up = repeat_policy(session, entry, incarnation);
	if (!still_up)
		return false;
	lg_link_begin(session->link, &request, LG_RESUMED);
	return ask(session, &request, &answer, "resuming") == LG_RESULT_DONE;
}

/* --- SAs -------------------------------------------------------------------------------------- */

/* Keeps an entry under the handle that lockgated issued; false, and the connection closes, if
 * another entry has that handle. */
static bool keep(struct lg_session *session, struct lg_entry *entry, uint64_t handle)
{
	if (lg_ledger_handle(session->ledger, handle)) {
		lg_link_reject(session->link, "it issued a handle twice");
		return false;
	}
	entry->handle = handle;
	lg_ledger_keep(session->ledger, entry);
	return true;
}

static enum lg_result ask_for_spi(struct lg_session *session, const struct lg_address *source,
				  const struct lg_address *destination, struct lg_answer *answer)
{
	struct lg_builder request;

	if (!begin(session, &request, LG_GET_SPI))
		return LG_RESULT_DOWN;
	lg_put_address(&request, LG_SOURCE, source);
	lg_put_address(&request, LG_DESTINATION, destination);
	return ask(session, &request, answer, "getting an SPI");
}

/* A new incarnation may choose a number that charon still has from the last one. */
static enum lg_result find_spi(struct lg_session *session, const struct lg_address *source,
			       const struct lg_address *destination, struct lg_answer *answer)
{
	enum lg_result result;
	struct lg_answer deleted;

	for (int tries = 0; tries < SPI_TRIES; tries++) {
		result = ask_for_spi(session, source, destination, answer);
		if (result != LG_RESULT_DONE ||
		    !lg_ledger_sa(session->ledger, answer->spi, destination))
			return result;
		ask_of(session, LG_DELETE_SA, answer->handle, &deleted, "giving an SPI back");
	}
	return LG_RESULT_REFUSED;
}

enum lg_result lg_session_spi(struct lg_session *session, const struct lg_address *source,
			      const struct lg_address *destination, uint32_t *spi)
{
	struct lg_entry *entry = lg_ledger_new(LG_ENTRY_SPI, NULL, 0);
	enum lg_result result = LG_RESULT_REFUSED;
	struct lg_answer answer;

	if (!entry)
		return result;
	lg_link_lock(session->link);
	result = find_spi(session, source, destination, &answer);
	if (result == LG_RESULT_DONE) {
		*spi = entry->spi = answer.spi;
		entry->destination = *destination;
		entry->direction = LG_INBOUND;
		if (!keep(session, entry, answer.handle))
			result = LG_RESULT_DOWN;
	}
	if (result != LG_RESULT_DONE)
		lg_ledger_drop(session->ledger, entry);
	lg_link_unlock(session->link);
	return result;
}

/* Keeps an SA that was accepted, in place of the reservation of its SPI. */
static bool keep_sa(struct lg_session *session, struct lg_entry *entry, uint64_t handle)
{
	struct lg_entry *reserved = lg_ledger_reserved(session->ledger, entry->spi);
	struct lg_entry *before = lg_ledger_sa(session->ledger, entry->spi, &entry->destination);

	if (before && before->kind == LG_ENTRY_GONE)
		lg_ledger_drop(session->ledger, before);
	if (reserved && entry->direction == LG_INBOUND)
		lg_ledger_drop(session->ledger, reserved);
	return keep(session, entry, handle);
}

enum lg_result lg_session_add_sa(struct lg_session *session, const struct lg_sa_id *id,
				 enum lg_direction direction, const struct lg_builder *fields,
				 const struct lg_keys *keys)
{
	struct lg_entry *entry = fields->failed ? NULL : lg_sa_new(id, direction, fields);
	enum lg_result result = LG_RESULT_DOWN;
	struct lg_builder request;
	struct lg_answer answer;

	if (!entry)
		return LG_RESULT_REFUSED;
	lg_link_lock(session->link);
	if (begin(session, &request, LG_ADD_SA)) {
		lg_put_encoded(&request, fields->bytes + LG_HEADER_BYTES,
			       fields->used - LG_HEADER_BYTES);
		lg_put(&request, LG_KEY, keys->key, keys->key_length);
		lg_put(&request, LG_INTEGRITY_KEY, keys->integrity, keys->integrity_length);
		result = ask(session, &request, &answer, "adding an SA");
	}
	if (result == LG_RESULT_DONE && !keep_sa(session, entry, answer.handle))
		result = LG_RESULT_DOWN;
	/* charon goes on without the outbound SA of a rekeying, and would send nothing until the next
	 * one. */
	if (result == LG_RESULT_DOWN && direction == LG_OUTBOUND)
		tell_expired(session, entry);
	if (result != LG_RESULT_DONE)
		lg_ledger_drop(session->ledger, entry);
	lg_link_unlock(session->link);
	return result;
}

/* The SA by charon's name for it; NULL: unknown or gone. Connects first, because connecting may
 * end the SA. */
static struct lg_entry *find_sa(struct lg_session *session, const struct lg_sa_id *id)
{
	struct lg_entry *entry;

	lg_link_up(session->link);
	entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
	return entry && entry->kind == LG_ENTRY_SA ? entry : NULL;
}

/*
 * Moves an SA. charon takes it as moved whatever the result is, so the ledger does too: it is how
 * charon names the SA from then on. Without a connection the next one delivers the move. An SA that
 * lockgated does not move ends.
 */
enum lg_result lg_session_update_sa(struct lg_session *session, const struct lg_sa_id *id,
				    const struct lg_move *move)
{
	enum lg_result result = LG_RESULT_UNKNOWN;
	struct lg_entry *entry;

	lg_link_lock(session->link);
	entry = find_sa(session, id);
	if (entry) {
		result = !lg_sa_move(entry, move) ? LG_RESULT_REFUSED :
			 is_connected(session)	  ? ask_to_move(session, entry) :
						    LG_RESULT_DOWN;
		if (result == LG_RESULT_REFUSED || result == LG_RESULT_UNKNOWN)
			end_child(session, entry);
	} else {
		entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
		if (entry && entry->kind == LG_ENTRY_GONE)
			entry->destination = move->destination;
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
	struct lg_answer answer;
	struct lg_entry *entry;

	lg_link_lock(session->link);
	entry = find_sa(session, id);
	if (entry && is_connected(session))
		result = ask_of(session, LG_QUERY_SA, entry->handle, &answer,
				"asking for an SA's use");
	if (result == LG_RESULT_DONE)
		read_use(&answer, use);
	lg_link_unlock(session->link);
	return result;
}

/* charon deletes an SPI that it did not use in the same way. */
enum lg_result lg_session_delete_sa(struct lg_session *session, const struct lg_sa_id *id)
{
	enum lg_result result = LG_RESULT_DONE;
	struct lg_answer answer;
	struct lg_entry *entry;

	lg_link_lock(session->link);
	lg_link_up(session->link);
	entry = lg_ledger_sa(session->ledger, id->spi, &id->destination);
	if (entry && entry->handle && is_connected(session))
		result = ask_of(session, LG_DELETE_SA, entry->handle, &answer, "deleting an SA");
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
	/* Without a connection the next one sees to it: what is not named is dropped. */
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

/* The ledger has the names until lockgated answers: the next connection delivers them if not. */
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
	entry = find_sa(session, id);
	/* One that is gone by now needs no name. */
	if (entry && lg_bytes_set(&entry->names, names.bytes + LG_HEADER_BYTES,
				  names.used - LG_HEADER_BYTES))
		result = is_connected(session) ? ask_to_name(session, entry) : LG_RESULT_DOWN;
	lg_link_unlock(session->link);
	return result;
}

enum lg_result lg_session_flush_sas(struct lg_session *session)
{
	return flush(session, LG_FLUSH_SAS);
}

/* --- policies --------------------------------------------------------------------------------- */

/* A trap or a shunt, or one whose SA charon has and the next connection names. */
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
		entry = lg_ledger_new(LG_ENTRY_POLICY, fields->bytes + LG_HEADER_BYTES,
				      fields->used - LG_HEADER_BYTES);
	if (!entry) {
		result = LG_RESULT_REFUSED;
	} else if (begin(session, &request, LG_ADD_POLICY)) {
		lg_put_encoded(&request, entry->fields.bytes, entry->fields.length);
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
		if (memcmp(twin->fields.bytes, bytes, length) == 0)
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
		live = incarnation && incarnation == lg_link_incarnation(session->link);
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

/* Adds what charon names the SA by. An SA that is unknown has been deleted meanwhile. */
static void on_event(void *owner, const struct lg_event *event)
{
	struct lg_session *session = owner;
	struct lg_event told = *event;
	struct lg_entry *entry;

	if (event->kind == LG_ACQUIRE) {
		told.delay_ms = lg_now() < session->settled_at ? LG_SETTLE_MS : 0;
	} else {
		entry = lg_ledger_handle(session->ledger, event->handle);
		if (!entry || entry->kind != LG_ENTRY_SA)
			return;
		told.spi = entry->spi;
		told.host = entry->destination;
	}
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
