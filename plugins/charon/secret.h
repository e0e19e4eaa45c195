/* SPDX-License-Identifier: MIT */
/*
 * Memory for keys: locked against swapping where the limits allow it, left out of core dumps, wiped
 * when it is given back.
 */
#ifndef LOCKGATE_SECRET_H_
#define LOCKGATE_SECRET_H_

#include <stddef.h>
#include <stdint.h>

/* Bytes of a slot: the longest two keys (AES-256-CBC with HMAC-SHA-512) with their field heads. */
#define LG_SECRET_BYTES 128

struct lg_secrets;

struct lg_secrets *lg_secrets_create(void);
/* All slots must have been given back. */
void lg_secrets_destroy(struct lg_secrets *secrets);
/* A slot of LG_SECRET_BYTES zeros; NULL without memory. */
uint8_t *lg_secret_take(struct lg_secrets *secrets);
void lg_secret_give(struct lg_secrets *secrets, uint8_t *slot);
/* 0, or the errno of the first lock that the system refused. */
int lg_secrets_unlocked(const struct lg_secrets *secrets);
/* Locks bytes that are not a slot; 0 or errno. */
int lg_secret_lock(void *bytes, size_t length);

#endif /* LOCKGATE_SECRET_H_ */
