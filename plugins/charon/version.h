/* SPDX-License-Identifier: MIT */
/*
 * The version of the charon that runs.
 *
 * strongSwan 5.9 does not tell plugins its version and does not check theirs, while the layout of
 * its interfaces changes from one version to the next. But its programs contain the version as a
 * string, so it is looked for in the read-only memory of the program.
 */
#ifndef LOCKGATE_VERSION_H_
#define LOCKGATE_VERSION_H_

#include <stdbool.h>
#include <stddef.h>

/* True if the bytes contain `version`, and not as a part of a longer one. */
bool lg_contains_version(const char *bytes, size_t length, const char *version);
/* True if the program that runs contains it. */
bool lg_program_contains_version(const char *version);

#endif /* LOCKGATE_VERSION_H_ */
