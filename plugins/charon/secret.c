/* SPDX-License-Identifier: MIT */
#include "secret.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Bytes that are mapped and locked at once. */
#define BLOCK_BYTES (64 * 1024)

/* A free slot holds the address of the next one. */
struct free_slot {
	struct free_slot *next;
};

/* The first slot of a block holds the address of the next block. */
struct block {
	struct block *next;
};

struct lg_secrets {
	struct block *blocks;
	struct free_slot *free;
	int unlocked;
};

struct lg_secrets *lg_secrets_create(void)
{
	return calloc(1, sizeof(struct lg_secrets));
}

void lg_secrets_destroy(struct lg_secrets *secrets)
{
	struct block *block, *next;

	if (!secrets)
		return;
	for (block = secrets->blocks; block; block = next) {
		next = block->next;
		explicit_bzero(block, BLOCK_BYTES);
		munmap(block, BLOCK_BYTES);
	}
	free(secrets);
}

int lg_secret_lock(void *bytes, size_t length)
{
	return mlock(bytes, length) == 0 ? 0 : errno;
}

static int grow(struct lg_secrets *secrets)
{
	uint8_t *bytes = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct block *block = (struct block *)bytes;
	int error;

	if (bytes == MAP_FAILED)
		return -1;
	madvise(bytes, BLOCK_BYTES, MADV_DONTDUMP);
	error = lg_secret_lock(bytes, BLOCK_BYTES);
	if (error && !secrets->unlocked)
		secrets->unlocked = error;
	block->next = secrets->blocks;
	secrets->blocks = block;
	for (size_t at = LG_SECRET_BYTES; at < BLOCK_BYTES; at += LG_SECRET_BYTES) {
		struct free_slot *slot = (struct free_slot *)(bytes + at);

		slot->next = secrets->free;
		secrets->free = slot;
	}
	return 0;
}

uint8_t *lg_secret_take(struct lg_secrets *secrets)
{
	struct free_slot *slot;

	if (!secrets->free && grow(secrets) != 0)
		return NULL;
	slot = secrets->free;
	secrets->free = slot->next;
	memset(slot, 0, LG_SECRET_BYTES);
	return (uint8_t *)slot;
}

void lg_secret_give(struct lg_secrets *secrets, uint8_t *slot)
{
	struct free_slot *freed = (struct free_slot *)slot;

	if (!slot)
		return;
	explicit_bzero(slot, LG_SECRET_BYTES);
	freed->next = secrets->free;
	secrets->free = freed;
}

int lg_secrets_unlocked(const struct lg_secrets *secrets)
{
	return secrets->unlocked;
}
