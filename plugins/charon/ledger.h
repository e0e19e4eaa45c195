/* SPDX-License-Identifier: MIT */
/*
 * The ledger: what charon believes to be installed, and in which incarnation of lockgated.
 *
 * charon asks once and keeps no copy, so whatever has to be repeated after a lost connection is
 * kept here as the encoded fields of its request, in the order of the requests. Keys stand apart
 * from them, in memory of secret.h, and are wiped as soon as the incarnation they were given to is
 * gone. Not handled here: locking; the session that owns the ledger does it.
 */
#ifndef LOCKGATE_LEDGER_H_
#define LOCKGATE_LEDGER_H_

#include "message.h"
#include "secret.h"

enum lg_entry_kind {
	/* An SPI that lockgated reserved and charon has not used yet. */
	LG_ENTRY_SPI,
	LG_ENTRY_SA,
	LG_ENTRY_POLICY,
};

struct lg_entry {
	enum lg_entry_kind kind;
	/* The incarnation that accepted it; 0: none has yet (a trap before lockgated is up). */
	uint64_t incarnation;
	/* SPIs and SAs. */
	uint32_t spi;
	struct lg_address destination;
	enum lg_direction direction;
	/* Encoded fields without keys and without REPEAT. */
	uint8_t *fields;
	size_t length;
	/* A slot with the encoded key fields; NULL: wiped, or not an SA. */
	uint8_t *keys;
	size_t keys_length;
	/* Encoded names of an inbound SA in charon's configuration; NULL: not told yet. */
	uint8_t *names;
	size_t names_length;
	/* Of an SA that is no more: when charon is told next that it expired, in milliseconds. */
	int64_t tell_at;
	bool lost;

	uint32_t hash;
	struct lg_entry *chain;
	struct lg_entry *previous;
	struct lg_entry *next;
};

struct lg_ledger;

struct lg_ledger *lg_ledger_create(void);
void lg_ledger_destroy(struct lg_ledger *ledger);
/* The entry is the caller's until lg_ledger_keep; lg_ledger_drop frees it either way. */
struct lg_entry *lg_ledger_new(struct lg_ledger *ledger, enum lg_entry_kind kind,
			       const uint8_t *fields, size_t length);
/* Encodes both keys into the entry's slot; false if they do not fit or memory is short. */
bool lg_ledger_set_keys(struct lg_ledger *ledger, struct lg_entry *entry, const uint8_t *key,
			size_t key_length, const uint8_t *integrity, size_t integrity_length);
void lg_ledger_wipe_keys(struct lg_ledger *ledger, struct lg_entry *entry);
/* Has an SA have these names, in place of those before; false if memory is short. */
bool lg_ledger_name(struct lg_entry *entry, const uint8_t *names, size_t length);
void lg_ledger_keep(struct lg_ledger *ledger, struct lg_entry *entry);
void lg_ledger_drop(struct lg_ledger *ledger, struct lg_entry *entry);
/* Replaces the fields of a kept SA or policy. */
bool lg_ledger_rewrite(struct lg_ledger *ledger, struct lg_entry *entry, const uint8_t *fields,
		       size_t length);

/* A reserved SPI or an SA by its number and destination; the port counts for outbound SAs alone. */
struct lg_entry *lg_ledger_sa(struct lg_ledger *ledger, uint32_t spi,
			      const struct lg_address *destination);
/* The reservation of an SPI: charon may have another address by the time it puts the SA. */
struct lg_entry *lg_ledger_reserved(struct lg_ledger *ledger, uint32_t spi);
/* The policy with exactly these fields, of which PRIORITY is the last. */
struct lg_entry *lg_ledger_policy(struct lg_ledger *ledger, const uint8_t *fields,
				  size_t length);
/* The newest policy with these fields, whatever its PRIORITY: for lockgated they are one. */
struct lg_entry *lg_ledger_twin(struct lg_ledger *ledger, const uint8_t *fields, size_t length);
/* The oldest entry; go on by `next`. */
struct lg_entry *lg_ledger_first(struct lg_ledger *ledger);
size_t lg_ledger_count(const struct lg_ledger *ledger, enum lg_entry_kind kind);
/* As lg_secrets_unlocked. */
int lg_ledger_unlocked(const struct lg_ledger *ledger);

#endif /* LOCKGATE_LEDGER_H_ */
