/* SPDX-License-Identifier: MIT */
/*
 * Memory for messages that hold keys: left out of core dumps, locked against swapping where the
 * limits allow it, wiped before it is given back.
 */
#ifndef LOCKGATE_SECRET_H_
#define LOCKGATE_SECRET_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maps zeroed bytes; NULL without memory. Sets `*unlocked` if the system refuses the lock. */
uint8_t *lg_secret_map(size_t length, bool *unlocked);
/* Wipes and unmaps; NULL is allowed. */
void lg_secret_unmap(uint8_t *bytes, size_t length);

#endif /* LOCKGATE_SECRET_H_ */
