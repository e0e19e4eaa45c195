/* SPDX-License-Identifier: MIT */
#include "names.h"

#include <daemon.h>
#include <processing/jobs/callback_job.h>

struct lg_names {
	listener_t listener;
	struct lg_session *session;
};

/* What is told, copied: charon's objects are its threads' alone. */
struct naming {
	struct lg_session *session;
	struct lg_sa_id id;
	char ike[LG_MAX_NAME + 1];
	char child[LG_MAX_NAME + 1];
};

static void to_address(host_t *host, struct lg_address *address)
{
	chunk_t bytes = host->get_address(host);

	memset(address, 0, sizeof(*address));
	address->length = min(bytes.len, sizeof(address->bytes));
	memcpy(address->bytes, bytes.ptr, address->length);
	address->port = host->get_port(host);
}

static job_requeue_t tell(struct naming *naming)
{
	lg_session_name_sa(naming->session, &naming->id, naming->ike, naming->child);
	return JOB_REQUEUE_NONE;
}

/* Leaves it to a worker: listeners are called with charon's bus locked. charon ends its workers
 * before it destroys the session. */
static void tell_later(struct lg_names *names, ike_sa_t *ike_sa, child_sa_t *child_sa)
{
	struct naming *naming;

	if (!ike_sa || !child_sa || child_sa->get_protocol(child_sa) != PROTO_ESP)
		return;
	naming = malloc_thing(struct naming);
	naming->session = names->session;
	to_address(ike_sa->get_other_host(ike_sa), &naming->id.source);
	to_address(ike_sa->get_my_host(ike_sa), &naming->id.destination);
	naming->id.spi = ntohl(child_sa->get_spi(child_sa, TRUE));
	strncpy(naming->ike, ike_sa->get_name(ike_sa) ?: "", LG_MAX_NAME);
	strncpy(naming->child, child_sa->get_name(child_sa) ?: "", LG_MAX_NAME);
	naming->ike[LG_MAX_NAME] = naming->child[LG_MAX_NAME] = '\0';
	lib->processor->queue_job(lib->processor,
				  (job_t *)callback_job_create((callback_job_cb_t)tell, naming,
							       free, NULL));
}

METHOD(listener_t, child_updown, bool, struct lg_names *this, ike_sa_t *ike_sa,
       child_sa_t *child_sa, bool up)
{
	if (up)
		tell_later(this, ike_sa, child_sa);
	return TRUE;
}

METHOD(listener_t, child_rekey, bool, struct lg_names *this, ike_sa_t *ike_sa, child_sa_t *old,
       child_sa_t *new)
{
	tell_later(this, ike_sa, new);
	return TRUE;
}

struct lg_names *lg_names_create(struct lg_session *session)
{
	struct lg_names *this;

	INIT(this,
		.listener = {
			.child_updown = _child_updown,
			.child_rekey = _child_rekey,
		},
		.session = session,
	);
	charon->bus->add_listener(charon->bus, &this->listener);
	return this;
}

void lg_names_destroy(struct lg_names *this)
{
	charon->bus->remove_listener(charon->bus, &this->listener);
	free(this);
}
