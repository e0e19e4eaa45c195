/* SPDX-License-Identifier: MIT */
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

#define CHAINS 16384u

struct lg_ledger {
	struct lg_secrets *secrets;
	struct lg_entry *first;
	struct lg_entry *last;
	size_t counts[LG_ENTRY_POLICY + 1];
	struct lg_entry *chains[CHAINS];
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

struct lg_ledger *lg_ledger_create(void)
{
	struct lg_ledger *ledger = calloc(1, sizeof(*ledger));

	if (!ledger)
		return NULL;
	ledger->secrets = lg_secrets_create();
	if (!ledger->secrets) {
		free(ledger);
		return NULL;
	}
	return ledger;
}

void lg_ledger_destroy(struct lg_ledger *ledger)
{
	if (!ledger)
		return;
	while (ledger->first)
		lg_ledger_drop(ledger, ledger->first);
	lg_secrets_destroy(ledger->secrets);
	free(ledger);
}

static uint8_t *copy(const uint8_t *bytes, size_t length)
{
	uint8_t *copied = malloc(length ? length : 1);

	if (copied && length)
		memcpy(copied, bytes, length);
	return copied;
}

struct lg_entry *lg_ledger_new(struct lg_ledger *ledger, enum lg_entry_kind kind,
			       const uint8_t *fields, size_t length)
{
	struct lg_entry *entry = calloc(1, sizeof(*entry));

	(void)ledger;
	if (!entry)
		return NULL;
	entry->kind = kind;
	entry->fields = copy(fields, length);
	entry->length = length;
	if (!entry->fields) {
		free(entry);
		return NULL;
	}
	return entry;
}

bool lg_ledger_set_keys(struct lg_ledger *ledger, struct lg_entry *entry, const uint8_t *key,
			size_t key_length, const uint8_t *integrity, size_t integrity_length)
{
	const struct {
		enum lg_field field;
		const uint8_t *bytes;
		size_t length;
	} keys[] = {
		{ LG_KEY, key, key_length },
		{ LG_INTEGRITY_KEY, integrity, integrity_length },
	};
	uint8_t *to;

	if (key_length > LG_SECRET_BYTES || integrity_length > LG_SECRET_BYTES ||
	    key_length + integrity_length + 8 > LG_SECRET_BYTES)
		return false;
	entry->keys = lg_secret_take(ledger->secrets);
	if (!entry->keys)
		return false;
	to = entry->keys;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		to[0] = 0;
		to[1] = keys[i].field;
		to[2] = keys[i].length >> 8;
		to[3] = keys[i].length;
		if (keys[i].length)
			memcpy(to + 4, keys[i].bytes, keys[i].length);
		to += 4 + keys[i].length;
	}
	entry->keys_length = to - entry->keys;
	return true;
}

void lg_ledger_wipe_keys(struct lg_ledger *ledger, struct lg_entry *entry)
{
	lg_secret_give(ledger->secrets, entry->keys);
	entry->keys = NULL;
	entry->keys_length = 0;
}

bool lg_ledger_name(struct lg_entry *entry, const uint8_t *names, size_t length)
{
	uint8_t *copied = copy(names, length);

	if (!copied)
		return false;
	free(entry->names);
	entry->names = copied;
	entry->names_length = length;
	return true;
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
			      hash_bytes(entry->fields, name_length(entry->length)) :
			      hash_spi(entry->spi);
	head = &ledger->chains[entry->hash % CHAINS];
	entry->chain = *head;
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
}

void lg_ledger_drop(struct lg_ledger *ledger, struct lg_entry *entry)
{
	if (unchain(ledger, entry)) {
		*(entry->previous ? &entry->previous->next : &ledger->first) = entry->next;
		*(entry->next ? &entry->next->previous : &ledger->last) = entry->previous;
		ledger->counts[entry->kind]--;
	}
	lg_ledger_wipe_keys(ledger, entry);
	free(entry->fields);
	free(entry->names);
	free(entry);
}

bool lg_ledger_rewrite(struct lg_ledger *ledger, struct lg_entry *entry, const uint8_t *fields,
		       size_t length)
{
	uint8_t *copied = copy(fields, length);

	if (!copied)
		return false;
	unchain(ledger, entry);
	free(entry->fields);
	entry->fields = copied;
	entry->length = length;
	chain(ledger, entry);
	return true;
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

	while (at && (at->kind != LG_ENTRY_POLICY || at->length != length ||
		      memcmp(at->fields, fields, same) != 0))
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

int lg_ledger_unlocked(const struct lg_ledger *ledger)
{
	return lg_secrets_unlocked(ledger->secrets);
}
