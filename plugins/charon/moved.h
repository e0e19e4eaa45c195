/* SPDX-License-Identifier: MIT */
/* The fields of an SA whose ends move. */
#ifndef LOCKGATE_MOVED_H_
#define LOCKGATE_MOVED_H_

#include "ledger.h"
#include "session.h"

/* Copies an SA's fields as they are after the move; true if a selector changed. */
bool lg_rewrite_moved(const struct lg_entry *entry, const struct lg_sa_id *id,
		      const struct lg_move *move, struct lg_builder *to);
/* Copies the selectors of an SA. */
void lg_put_selectors(struct lg_builder *request, const struct lg_builder *sa);

#endif /* LOCKGATE_MOVED_H_ */
