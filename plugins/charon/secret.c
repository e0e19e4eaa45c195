/* SPDX-License-Identifier: MIT */
#include "secret.h"

#include <string.h>
#include <sys/mman.h>

uint8_t *lg_secret_map(size_t length, bool *unlocked)
{
	void *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (bytes == MAP_FAILED)
		return NULL;
	madvise(bytes, length, MADV_DONTDUMP);
	if (mlock(bytes, length) != 0)
		*unlocked = true;
	return bytes;
}

void lg_secret_unmap(uint8_t *bytes, size_t length)
{
	if (!bytes)
		return;
	explicit_bzero(bytes, length);
	munmap(bytes, length);
}
