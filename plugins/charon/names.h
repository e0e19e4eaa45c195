/* SPDX-License-Identifier: MIT */
/*
 * Names of CHILD_SAs, which charon's calls about SAs do not have: a listener to its events tells
 * lockgated which connection and child of swanctl.conf an SA is of.
 */
#ifndef LOCKGATE_NAMES_H_
#define LOCKGATE_NAMES_H_

#include "session.h"

struct lg_names;

struct lg_names *lg_names_create(struct lg_session *session);
void lg_names_destroy(struct lg_names *names);

#endif /* LOCKGATE_NAMES_H_ */
