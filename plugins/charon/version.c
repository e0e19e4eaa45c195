/* SPDX-License-Identifier: MIT */
#include "version.h"

#include <ctype.h>
#include <link.h>
#include <string.h>

static bool continues(char next)
{
	return isalnum((unsigned char)next) || next == '.';
}

bool lg_contains_version(const char *bytes, size_t length, const char *version)
{
	size_t size = strlen(version);
	const char *at = bytes, *end = bytes + length;

	while ((at = memmem(at, end - at, version, size))) {
		if ((at == bytes || !continues(at[-1])) &&
		    (at + size == end || !continues(at[size])))
			return true;
		at++;
	}
	return false;
}

struct search {
	const char *version;
	bool found;
};

/* The first object is the program; a result other than 0 ends the walk. */
static int search_program(struct dl_phdr_info *object, size_t size, void *given)
{
	struct search *search = given;

	(void)size;
	for (int i = 0; i < object->dlpi_phnum && !search->found; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type != PT_LOAD || !(part->p_flags & PF_R) || (part->p_flags & PF_W))
			continue;
		search->found = lg_contains_version(
			(const char *)(object->dlpi_addr + part->p_vaddr), part->p_filesz,
			search->version);
	}
	return 1;
}

bool lg_program_contains_version(const char *version)
{
	struct search search = { .version = version };

	dl_iterate_phdr(search_program, &search);
	return search.found;
}
