/* SPDX-License-Identifier: MIT */
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

#define CHAINS 16384u

struct lg_ledger {
	struct lg_entry *first;
	struct lg_entry *last;
	/* SAs that never had a partner, newest first. */
	struct lg_entry *lone;
	size_t counts[LG_ENTRY_POLICY + 1];
	struct lg_entry *chains[CHAINS];
	struct lg_entry *handle_chains[CHAINS];
};

/* FNV-1a; what is hashed comes from charon, whose peers cannot choose much of it. */
static uint32_t hash_bytes(const uint8_t *bytes, size_t length)
{
	uint32_t hash = 2166136261u;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	return hash;
}

static uint32_t hash_spi(uint32_t spi)
{
	return hash_bytes((const uint8_t *)&spi, sizeof(spi));
}

static struct lg_entry **handle_chain(struct lg_ledger *ledger, uint64_t handle)
{
	return &ledger->handle_chains[hash_bytes((const uint8_t *)&handle, sizeof(handle)) % CHAINS];
}

struct lg_ledger *lg_ledger_create(void)
{
	return calloc(1, sizeof(struct lg_ledger));
}

void lg_ledger_destroy(struct lg_ledger *ledger)
{
	if (!ledger)
		return;
	while (ledger->first)
		lg_ledger_drop(ledger, ledger->first);
	free(ledger);
}

bool lg_bytes_set(struct lg_bytes *to, const uint8_t *bytes, size_t length)
{
	uint8_t *copied = NULL;

	if (bytes) {
		copied = malloc(length ? length : 1);
		if (!copied)
			return false;
		memcpy(copied, bytes, length);
	}
	free(to->bytes);
	*to = (struct lg_bytes){ copied, length };
	return true;
}

struct lg_entry *lg_ledger_new(enum lg_entry_kind kind, const uint8_t *fields, size_t length)
{
	struct lg_entry *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return NULL;
	entry->kind = kind;
	if (!lg_bytes_set(&entry->fields, fields, length)) {
		free(entry);
		return NULL;
	}
	return entry;
}

/* Bytes of a policy's name, which is all but PRIORITY, the last field: a u32. */
static size_t name_length(size_t length)
{
	return length < 8 ? 0 : length - 8;
}

static void chain(struct lg_ledger *ledger, struct lg_entry *entry)
{
	struct lg_entry **head;

	entry->hash = entry->kind == LG_ENTRY_POLICY ?
			      hash_bytes(entry->fields.bytes, name_length(entry->fields.length)) :
			      hash_spi(entry->spi);
	head = &ledger->chains[entry->hash % CHAINS];
	entry->chain = *head;
	*head = entry;
	if (!entry->handle)
		return;
	head = handle_chain(ledger, entry->handle);
	entry->handle_chain = *head;
	*head = entry;
}

static bool unchain(struct lg_ledger *ledger, struct lg_entry *entry)
{
	struct lg_entry **at = &ledger->chains[entry->hash % CHAINS];

	while (*at && *at != entry)
		at = &(*at)->chain;
	if (!*at)
		return false;
	*at = entry->chain;
	return true;
}

static void unchain_handle(struct lg_ledger *ledger, struct lg_entry *entry)
{
	struct lg_entry **at = handle_chain(ledger, entry->handle);

	while (*at && *at != entry)
		at = &(*at)->handle_chain;
	if (*at)
		*at = entry->handle_chain;
}

static void unlink_lone(struct lg_ledger *ledger, struct lg_entry *entry)
{
	struct lg_entry **at = &ledger->lone;

	while (*at && *at != entry)
		at = &(*at)->lone;
	if (*at)
		*at = entry->lone;
}

/* A child's two SAs have one reqid, and each goes where the other comes from. */
static bool may_be_partners(const struct lg_entry *a, const struct lg_entry *b)
{
	return a->direction != b->direction && a->reqid == b->reqid &&
	       lg_same_host(&a->source, &b->destination) &&
	       lg_same_host(&a->destination, &b->source);
}

static void pair(struct lg_ledger *ledger, struct lg_entry *entry)
{
	struct lg_entry *other = ledger->lone;

	while (other && !may_be_partners(entry, other))
		other = other->lone;
	if (other) {
		unlink_lone(ledger, other);
		other->partner = entry;
		entry->partner = other;
	} else {
		entry->lone = ledger->lone;
		ledger->lone = entry;
	}
}

static void unpair(struct lg_ledger *ledger, struct lg_entry *entry)
{
	if (entry->partner)
		entry->partner->partner = NULL;
	else if (entry->kind == LG_ENTRY_SA)
		unlink_lone(ledger, entry);
	entry->partner = NULL;
}

void lg_ledger_keep(struct lg_ledger *ledger, struct lg_entry *entry)
{
	chain(ledger, entry);
	entry->previous = ledger->last;
	entry->next = NULL;
	if (ledger->last)
		ledger->last->next = entry;
	else
		ledger->first = entry;
	ledger->last = entry;
	ledger->counts[entry->kind]++;
	if (entry->kind == LG_ENTRY_SA)
		pair(ledger, entry);
}

void lg_ledger_drop(struct lg_ledger *ledger, struct lg_entry *entry)
{
	if (unchain(ledger, entry)) {
		unchain_handle(ledger, entry);
		unpair(ledger, entry);
		*(entry->previous ? &entry->previous->next : &ledger->first) = entry->next;
		*(entry->next ? &entry->next->previous : &ledger->last) = entry->previous;
		ledger->counts[entry->kind]--;
	}
	free(entry->fields.bytes);
	free(entry->names.bytes);
	free(entry);
}

void lg_ledger_forget(struct lg_ledger *ledger, struct lg_entry *entry)
{
	unchain_handle(ledger, entry);
	unpair(ledger, entry);
	ledger->counts[entry->kind]--;
	entry->kind = LG_ENTRY_GONE;
	ledger->counts[entry->kind]++;
	entry->handle = 0;
	lg_bytes_set(&entry->fields, NULL, 0);
	lg_bytes_set(&entry->names, NULL, 0);
}

struct lg_entry *lg_ledger_handle(struct lg_ledger *ledger, uint64_t handle)
{
	struct lg_entry *at = *handle_chain(ledger, handle);

	while (at && at->handle != handle)
		at = at->handle_chain;
	return at;
}

/* The port that ESP comes in by may change without a word; what is sent, charon names by it. */
static bool is_for(const struct lg_entry *entry, const struct lg_address *destination)
{
	return lg_same_host(&entry->destination, destination) &&
	       (entry->direction != LG_OUTBOUND || entry->destination.port == destination->port);
}

struct lg_entry *lg_ledger_sa(struct lg_ledger *ledger, uint32_t spi,
			      const struct lg_address *destination)
{
	struct lg_entry *at = ledger->chains[hash_spi(spi) % CHAINS];

	while (at && (at->kind == LG_ENTRY_POLICY || at->spi != spi || !is_for(at, destination)))
		at = at->chain;
	return at;
}

struct lg_entry *lg_ledger_reserved(struct lg_ledger *ledger, uint32_t spi)
{
	struct lg_entry *at = ledger->chains[hash_spi(spi) % CHAINS];

	while (at && (at->kind != LG_ENTRY_SPI || at->spi != spi))
		at = at->chain;
	return at;
}

/* The policy with the same first bytes. */
static struct lg_entry *find_policy(struct lg_ledger *ledger, const uint8_t *fields, size_t length,
				    size_t same)
{
	uint32_t hash = hash_bytes(fields, name_length(length));
	struct lg_entry *at = ledger->chains[hash % CHAINS];

	while (at && (at->kind != LG_ENTRY_POLICY || at->fields.length != length ||
		      memcmp(at->fields.bytes, fields, same) != 0))
		at = at->chain;
	return at;
}

struct lg_entry *lg_ledger_policy(struct lg_ledger *ledger, const uint8_t *fields, size_t length)
{
	return find_policy(ledger, fields, length, length);
}

struct lg_entry *lg_ledger_twin(struct lg_ledger *ledger, const uint8_t *fields, size_t length)
{
	return find_policy(ledger, fields, length, name_length(length));
}

struct lg_entry *lg_ledger_first(struct lg_ledger *ledger)
{
	return ledger->first;
}

size_t lg_ledger_count(const struct lg_ledger *ledger, enum lg_entry_kind kind)
{
	return ledger->counts[kind];
}
