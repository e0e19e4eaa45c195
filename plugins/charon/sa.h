/* SPDX-License-Identifier: MIT */
/* The entry of an SA: made from the request that puts the SA, and moved. */
#ifndef LOCKGATE_SA_H_
#define LOCKGATE_SA_H_

#include "ledger.h"
#include "session.h"

/* An entry with what moves and names need of the fields; NULL if memory is short. */
struct lg_entry *lg_sa_new(const struct lg_sa_id *id, enum lg_direction direction,
			   const struct lg_builder *fields);
/* Gives an SA the ends, the reqid and the selectors that it has after the move, and notes in
 * `moved` what UPDATE_SA has to deliver. False if the selectors do not fit, or memory is short. */
bool lg_sa_move(struct lg_entry *entry, const struct lg_move *move);
/* Appends what `moved` says, HANDLE apart. */
void lg_sa_put_move(struct lg_builder *to, const struct lg_entry *entry);

#endif /* LOCKGATE_SA_H_ */
