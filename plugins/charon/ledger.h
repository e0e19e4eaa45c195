/* SPDX-License-Identifier: MIT */
/*
 * The ledger: what charon believes to be installed.
 *
 * An SA and a reserved SPI stand here by the handle that lockgated issued, without any key: the
 * handle is enough to name them after a lost connection. Of an SA the ledger also has what a call
 * of charon's names it by, and what a move or a name changed and lockgated has not received yet.
 * charon puts a policy once and keeps no copy, so a policy stands here as the encoded fields of its
 * request. Not handled here: locking; the session that owns the ledger does it.
 */
#ifndef LOCKGATE_LEDGER_H_
#define LOCKGATE_LEDGER_H_

#include "message.h"

enum lg_entry_kind {
	/* An SPI that lockgated reserved and charon has not used yet. */
	LG_ENTRY_SPI,
	LG_ENTRY_SA,
	/* An SA that lockgated lacks and charon has not deleted yet. It has no handle; until charon
	 * deletes it, its SPI is not used again. */
	LG_ENTRY_GONE,
	LG_ENTRY_POLICY,
};

/* What UPDATE_SA still has to deliver. */
enum lg_moved {
	LG_MOVED_ENDS = 1,
	LG_MOVED_REQID = 2,
	LG_MOVED_SELECTORS = 4,
};

struct lg_bytes {
	uint8_t *bytes;
	size_t length;
};

struct lg_entry {
	enum lg_entry_kind kind;

	/* The incarnation that accepted a policy; 0: none has yet (a trap before lockgated is up). */
	uint64_t incarnation;

	/* When a refused policy is put again, or the end of an SA is reported again; milliseconds. */
	int64_t again_at;

	/* SPIs and SAs. */
	uint64_t handle;
	uint32_t spi;
	struct lg_address destination;
	enum lg_direction direction;

	/* SAs. */
	struct lg_address source;
	uint32_t reqid;
	bool encapsulation;
	/* The SA of the other direction of the same child; NULL: gone, or not put yet. */
	struct lg_entry *partner;
	/* Names in charon's configuration that lockgated has not received yet. */
	struct lg_bytes names;
	/* Set of enum lg_moved. */
	unsigned moved;
	/* Number of the RESUME_SAS that named the entry last, and whether lockgated lacks it. */
	uint32_t lump;
	bool lacking;

	/* Encoded: of a policy all fields without REPEAT, of an SA the selectors. */
	struct lg_bytes fields;

	/* Chains of the indexes, the list in the order of the requests, and that of lone SAs. */
	uint32_t hash;
	struct lg_entry *chain;
	struct lg_entry *handle_chain;
	struct lg_entry *previous;
	struct lg_entry *next;
	struct lg_entry *lone;
};

struct lg_ledger;

struct lg_ledger *lg_ledger_create(void);
void lg_ledger_destroy(struct lg_ledger *ledger);
/* Replaces bytes by a copy of others, or by none; false if memory is short. */
bool lg_bytes_set(struct lg_bytes *to, const uint8_t *bytes, size_t length);
/* The entry is the caller's until lg_ledger_keep; lg_ledger_drop frees it either way. */
struct lg_entry *lg_ledger_new(enum lg_entry_kind kind, const uint8_t *fields, size_t length);
/*
 * An SA gets the newest SA that has no partner yet, of the other direction and the same reqid
 * between the same hosts, as its partner: charon puts the two SAs of a child one after the other.
 */
void lg_ledger_keep(struct lg_ledger *ledger, struct lg_entry *entry);
void lg_ledger_drop(struct lg_ledger *ledger, struct lg_entry *entry);
/* Turns an SA into LG_ENTRY_GONE. The entry keeps its place in the list. */
void lg_ledger_forget(struct lg_ledger *ledger, struct lg_entry *entry);

/* SPIs and SAs by handle; NULL: unknown. */
struct lg_entry *lg_ledger_handle(struct lg_ledger *ledger, uint64_t handle);
/* SPIs and SAs by SPI and destination; the port counts for outbound SAs alone. */
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

#endif /* LOCKGATE_LEDGER_H_ */
