/* SPDX-License-Identifier: MIT */
#include "ipsec.h"

#include <daemon.h>
#include <processing/jobs/callback_job.h>

#include "names.h"
#include "session.h"

/* Since 6.0.2 an SA can be bound to a CPU, and a moved SA names its old reqid too. */
#ifdef CPU_ID_MAX
#define HAS_CPU 1
#else
#define HAS_CPU 0
#endif

#define DEFAULT_SOCKET "/run/lockgate/charon.sock"

typedef struct private_ipsec_t private_ipsec_t;

struct private_ipsec_t {
	kernel_ipsec_t public;
	struct lg_session *session;
	struct lg_names *names;
};

/* --- between charon's types and the protocol's ----------------------------------------------- */

static void to_address(host_t *host, struct lg_address *address)
{
	chunk_t bytes = host->get_address(host);

	memset(address, 0, sizeof(*address));
	address->length = bytes.len;
	memcpy(address->bytes, bytes.ptr, min(bytes.len, sizeof(address->bytes)));
	address->port = host->get_port(host);
}

static host_t *to_host(const struct lg_address *address)
{
	chunk_t bytes = chunk_create((u_char *)address->bytes, address->length);

	return host_create_from_chunk(address->length == 4 ? AF_INET : AF_INET6, bytes,
				      address->port);
}

/* False for a selector that the protocol has no form for. */
static bool to_selector(traffic_selector_t *ts, struct lg_selector *selector)
{
	chunk_t first = ts->get_from_address(ts), last = ts->get_to_address(ts);

	memset(selector, 0, sizeof(*selector));
	selector->protocol = ts->get_protocol(ts);
	selector->first_port = ts->get_from_port(ts);
	selector->last_port = ts->get_to_port(ts);
	if (first.len != last.len || (first.len != 4 && first.len != 16) ||
	    selector->first_port > selector->last_port)
		return FALSE;
	selector->length = first.len;
	memcpy(selector->first, first.ptr, first.len);
	memcpy(selector->last, last.ptr, last.len);
	return TRUE;
}

static traffic_selector_t *to_ts(const struct lg_selector *selector)
{
	return traffic_selector_create_from_bytes(
		selector->protocol,
		selector->length == 4 ? TS_IPV4_ADDR_RANGE : TS_IPV6_ADDR_RANGE,
		chunk_create((u_char *)selector->first, selector->length), selector->first_port,
		chunk_create((u_char *)selector->last, selector->length), selector->last_port);
}

static void to_id(kernel_ipsec_sa_id_t *from, struct lg_sa_id *id)
{
	memset(id, 0, sizeof(*id));
	to_address(from->src, &id->source);
	to_address(from->dst, &id->destination);
	id->spi = ntohl(from->spi);
}

static status_t to_status(enum lg_result result)
{
	switch (result) {
	case LG_RESULT_DONE:
		return SUCCESS;
	case LG_RESULT_UNKNOWN:
		return NOT_FOUND;
	default:
		return FAILED;
	}
}

/* A monotonic time as charon wants it; 0: never. */
static time_t to_time(const struct lg_use *use)
{
	time_t now = time_monotonic(NULL);

	if (use->idle == UINT64_MAX)
		return 0;
	return use->idle < (uint64_t)now ? now - (time_t)use->idle : 1;
}

/* --- what lockgated tells --------------------------------------------------------------------- */

static void tell_acquire(struct lg_event *event)
{
	kernel_acquire_data_t data = {
		.src = to_ts(&event->source),
		.dst = to_ts(&event->destination),
#if HAS_CPU
		.cpu = CPU_ID_MAX,
#endif
	};

	charon->kernel->acquire(charon->kernel, event->reqid, &data);
	DESTROY_IF(data.src);
	DESTROY_IF(data.dst);
}

static job_requeue_t tell(struct lg_event *event)
{
	host_t *host, *remote;
	uint32_t delay = event->delay_ms;

	event->delay_ms = 0;
	if (delay)
		return JOB_RESCHEDULE_MS(delay);
	switch (event->kind) {
	case LG_ACQUIRE:
		tell_acquire(event);
		break;
	case LG_EXPIRE:
		host = to_host(&event->host);
		if (host)
			charon->kernel->expire(charon->kernel, IPPROTO_ESP, htonl(event->spi),
					       host, event->hard);
		DESTROY_IF(host);
		break;
	case LG_MAPPING:
		host = to_host(&event->host);
		remote = to_host(&event->new_source);
		if (host && remote)
			charon->kernel->mapping(charon->kernel, IPPROTO_ESP, htonl(event->spi),
						host, remote);
		DESTROY_IF(host);
		DESTROY_IF(remote);
		break;
	default:
		break;
	}
	return JOB_REQUEUE_NONE;
}

/* Leaves the event to a worker of charon, because its listeners take their time. */
static void on_event(void *owner, const struct lg_event *event)
{
	struct lg_event *copy = malloc_thing(struct lg_event);
	callback_job_t *job;

	*copy = *event;
	job = callback_job_create_with_prio((callback_job_cb_t)tell, copy, free, NULL,
					    JOB_PRIO_HIGH);
	lib->processor->queue_job(lib->processor, (job_t *)job);
}

static void on_log(void *owner, const char *text)
{
	DBG1(DBG_KNL, "lockgate: %s", text);
}

/* --- SAs -------------------------------------------------------------------------------------- */

static status_t refuse(const char *what)
{
	DBG1(DBG_KNL, "lockgate: refused: it has no %s", what);
	return NOT_SUPPORTED;
}

/* What of an SA's identity Lockgate does not have; NULL: nothing. */
static const char *foreign_id(kernel_ipsec_sa_id_t *id)
{
	if (id->proto != IPPROTO_ESP)
		return "AH";
	if (id->mark.value || id->mark.mask)
		return "marks";
	if (id->if_id)
		return "interface ids";
	return NULL;
}

static const char *foreign_sa(kernel_ipsec_add_sa_t *data)
{
	if (data->mode != MODE_TUNNEL && data->mode != MODE_TRANSPORT)
		return "modes but tunnel and transport";
	if (data->ipcomp != IPCOMP_NONE)
		return "IPComp";
	if (data->tfc)
		return "traffic flow confidentiality padding";
	if (data->mark.value || data->mark.mask)
		return "marks";
	if (data->label)
		return "security labels";
	if (data->interface)
		return "SAs that are bound to an interface (its file says what is offloaded)";
	if (data->hw_offload != HW_OFFLOAD_NO && data->hw_offload != HW_OFFLOAD_AUTO)
		return "hw_offload in charon's configuration (its own says what is offloaded)";
	/* Only tunnel mode has a second header. */
	if (data->mode == MODE_TUNNEL && !data->copy_df)
		return "copy_df = no in charon's configuration (its own says `df`)";
	if (data->mode == MODE_TUNNEL && !data->copy_ecn)
		return "copy_ecn = no in charon's configuration";
	if (data->mode == MODE_TUNNEL && data->copy_dscp != DSCP_COPY_OUT_ONLY)
		return "copy_dscp but `out` in charon's configuration (its own says `dscp`)";
#if HAS_CPU
	if (data->cpu != CPU_ID_MAX)
		return "SAs for one CPU through charon";
#endif
	return NULL;
}

/* Appends selectors; false if there are too many or one has no form. */
static bool put_selectors(struct lg_builder *to, enum lg_field field, linked_list_t *list)
{
	struct lg_selector selector;
	traffic_selector_t *ts;
	enumerator_t *each;
	bool fits = list->get_count(list) <= LG_MAX_SELECTORS;

	each = list->create_enumerator(list);
	while (fits && each->enumerate(each, &ts)) {
		fits = to_selector(ts, &selector);
		if (fits)
			lg_put_selector(to, field, &selector);
	}
	each->destroy(each);
	return fits;
}

static void put_limits(struct lg_builder *to, lifetime_cfg_t *lifetime)
{
	const uint64_t soft[] = { lifetime->time.rekey, lifetime->bytes.rekey,
				  lifetime->packets.rekey };
	const uint64_t hard[] = { lifetime->time.life, lifetime->bytes.life,
				  lifetime->packets.life };

	lg_put_u64s(to, LG_SOFT, soft);
	lg_put_u64s(to, LG_HARD, hard);
}

METHOD(kernel_ipsec_t, add_sa, status_t, private_ipsec_t *this, kernel_ipsec_sa_id_t *id,
       kernel_ipsec_add_sa_t *data)
{
	const char *foreign = foreign_id(id) ?: foreign_sa(data);
	const struct lg_keys keys = {
		.key = data->enc_key.ptr,
		.key_length = data->enc_key.len,
		.integrity = data->int_key.ptr,
		.integrity_length = data->int_key.len,
	};
	uint8_t bytes[LG_MAX_MESSAGE];
	struct lg_builder fields;
	struct lg_sa_id sa;

	if (foreign)
		return refuse(foreign);
	to_id(id, &sa);
	lg_begin(&fields, bytes, sizeof(bytes), LG_ADD_SA);
	lg_put_u8(&fields, LG_DIRECTION, data->inbound ? LG_INBOUND : LG_OUTBOUND);
	lg_put_address(&fields, LG_SOURCE, &sa.source);
	lg_put_address(&fields, LG_DESTINATION, &sa.destination);
	lg_put_u32(&fields, LG_SPI, sa.spi);
	lg_put_u32(&fields, LG_REQID, data->reqid);
	lg_put_u8(&fields, LG_MODE, data->mode == MODE_TUNNEL ? LG_TUNNEL : LG_TRANSPORT);
	lg_put_u16(&fields, LG_ENCRYPTION, data->enc_alg);
	lg_put_u16(&fields, LG_INTEGRITY, data->int_alg == AUTH_UNDEFINED ? 0 : data->int_alg);
	lg_put_u8(&fields, LG_ESN, data->esn);
	lg_put_u32(&fields, LG_WINDOW, data->replay_window);
	lg_put_u8(&fields, LG_ENCAPSULATION, data->encap);
	put_limits(&fields, data->lifetime);
	if (!put_selectors(&fields, LG_SOURCE_SELECTOR, data->src_ts) ||
	    !put_selectors(&fields, LG_DESTINATION_SELECTOR, data->dst_ts))
		return refuse("SAs with more than 64 selectors an end, or with OPAQUE ports");
	lg_put_u8(&fields, LG_INITIATOR, data->initiator);
	return to_status(lg_session_add_sa(this->session, &sa,
					   data->inbound ? LG_INBOUND : LG_OUTBOUND, &fields,
					   &keys));
}

METHOD(kernel_ipsec_t, update_sa, status_t, private_ipsec_t *this, kernel_ipsec_sa_id_t *id,
       kernel_ipsec_update_sa_t *data)
{
	const char *foreign = foreign_id(id);
	struct lg_move move = {
		.encapsulation = data->new_encap,
		.reqid = data->new_reqid,
	};
	struct lg_sa_id sa;

#if HAS_CPU
	if (data->new_reqid == data->old_reqid)
		move.reqid = 0;
#endif
	if (foreign || data->cpi)
		return refuse(foreign ?: "IPComp");
	to_id(id, &sa);
	to_address(data->new_src, &move.source);
	to_address(data->new_dst, &move.destination);
	return to_status(lg_session_update_sa(this->session, &sa, &move));
}

METHOD(kernel_ipsec_t, query_sa, status_t, private_ipsec_t *this, kernel_ipsec_sa_id_t *id,
       kernel_ipsec_query_sa_t *data, uint64_t *bytes, uint64_t *packets, time_t *time)
{
	struct lg_use use;
	struct lg_sa_id sa;
	enum lg_result result;

	if (foreign_id(id))
		return NOT_FOUND;
	to_id(id, &sa);
	result = lg_session_query_sa(this->session, &sa, &use);
	if (result == LG_RESULT_DONE) {
		*bytes = use.bytes;
		*packets = use.packets;
		*time = to_time(&use);
	}
	return to_status(result);
}

METHOD(kernel_ipsec_t, del_sa, status_t, private_ipsec_t *this, kernel_ipsec_sa_id_t *id,
       kernel_ipsec_del_sa_t *data)
{
	struct lg_sa_id sa;

	if (foreign_id(id))
		return NOT_FOUND;
	to_id(id, &sa);
	return to_status(lg_session_delete_sa(this->session, &sa));
}

METHOD(kernel_ipsec_t, flush_sas, status_t, private_ipsec_t *this)
{
	return to_status(lg_session_flush_sas(this->session));
}

METHOD(kernel_ipsec_t, get_spi, status_t, private_ipsec_t *this, host_t *src, host_t *dst,
       uint8_t protocol, uint32_t *spi)
{
	struct lg_address source, destination;
	enum lg_result result;
	uint32_t chosen;

	if (protocol != IPPROTO_ESP)
		return refuse("AH");
	to_address(src, &source);
	to_address(dst, &destination);
	result = lg_session_spi(this->session, &source, &destination, &chosen);
	if (result == LG_RESULT_DONE)
		*spi = htonl(chosen);
	return to_status(result);
}

METHOD(kernel_ipsec_t, get_cpi, status_t, private_ipsec_t *this, host_t *src, host_t *dst,
       uint16_t *cpi)
{
	return refuse("IPComp");
}

/* --- policies --------------------------------------------------------------------------------- */

static const char *foreign_policy(kernel_ipsec_policy_id_t *id)
{
	if (id->mark.value || id->mark.mask)
		return "marks";
	if (id->if_id)
		return "interface ids";
	if (id->interface)
		return "policies that are bound to an interface";
	if (id->label)
		return "security labels";
	return NULL;
}

static enum lg_direction to_direction(policy_dir_t direction)
{
	switch (direction) {
	case POLICY_IN:
		return LG_INBOUND;
	case POLICY_OUT:
		return LG_OUTBOUND;
	default:
		return LG_FORWARD;
	}
}

/* Fields of a policy; NULL, or what Lockgate does not have. */
static const char *put_policy(struct lg_builder *to, kernel_ipsec_policy_id_t *id,
			      kernel_ipsec_manage_policy_t *data)
{
	struct lg_address source, destination;
	struct lg_selector from, into;

	if (foreign_policy(id))
		return foreign_policy(id);
	if (data->type == POLICY_IPSEC &&
	    (data->sa->ah.use || data->sa->ipcomp.transform != IPCOMP_NONE))
		return "AH and IPComp";
	if (!to_selector(id->src_ts, &from) || !to_selector(id->dst_ts, &into))
		return "OPAQUE ports";
	to_address(data->src, &source);
	to_address(data->dst, &destination);
	lg_put_u8(to, LG_DIRECTION, to_direction(id->dir));
	lg_put_address(to, LG_SOURCE, &source);
	lg_put_address(to, LG_DESTINATION, &destination);
	lg_put_selector(to, LG_SOURCE_SELECTOR, &from);
	lg_put_selector(to, LG_DESTINATION_SELECTOR, &into);
	lg_put_u8(to, LG_ACTION,
		  data->type == POLICY_IPSEC ? LG_PROTECT :
		  data->type == POLICY_PASS  ? LG_PASS :
					       LG_DROP);
	lg_put_u32(to, LG_REQID, data->sa->reqid);
	lg_put_u32(to, LG_SPI, data->sa->esp.use ? ntohl(data->sa->esp.spi) : 0);
	lg_put_u32(to, LG_PRIORITY,
		   (uint32_t)data->prio << 24 | min(data->manual_prio, 0xffffffu));
	return NULL;
}

METHOD(kernel_ipsec_t, add_policy, status_t, private_ipsec_t *this, kernel_ipsec_policy_id_t *id,
       kernel_ipsec_manage_policy_t *data)
{
	uint8_t bytes[1024];
	struct lg_builder fields;
	const char *foreign;

	lg_begin(&fields, bytes, sizeof(bytes), LG_ADD_POLICY);
	foreign = put_policy(&fields, id, data);
	if (foreign)
		return refuse(foreign);
	return to_status(lg_session_add_policy(this->session, &fields));
}

METHOD(kernel_ipsec_t, del_policy, status_t, private_ipsec_t *this, kernel_ipsec_policy_id_t *id,
       kernel_ipsec_manage_policy_t *data)
{
	uint8_t bytes[1024];
	struct lg_builder fields;

	lg_begin(&fields, bytes, sizeof(bytes), LG_ADD_POLICY);
	if (put_policy(&fields, id, data))
		return NOT_FOUND;
	return to_status(lg_session_delete_policy(this->session, &fields));
}

METHOD(kernel_ipsec_t, query_policy, status_t, private_ipsec_t *this,
       kernel_ipsec_policy_id_t *id, kernel_ipsec_query_policy_t *data, time_t *use_time)
{
	uint8_t bytes[1024];
	struct lg_selector from, into;
	struct lg_builder fields;
	struct lg_use use;
	enum lg_result result;

	if (foreign_policy(id) || !to_selector(id->src_ts, &from) ||
	    !to_selector(id->dst_ts, &into))
		return NOT_FOUND;
	lg_begin(&fields, bytes, sizeof(bytes), LG_QUERY_POLICY);
	lg_put_u8(&fields, LG_DIRECTION, to_direction(id->dir));
	lg_put_selector(&fields, LG_SOURCE_SELECTOR, &from);
	lg_put_selector(&fields, LG_DESTINATION_SELECTOR, &into);
	result = lg_session_query_policy(this->session, &fields, &use);
	if (result == LG_RESULT_DONE)
		*use_time = to_time(&use);
	return to_status(result);
}

METHOD(kernel_ipsec_t, flush_policies, status_t, private_ipsec_t *this)
{
	return to_status(lg_session_flush_policies(this->session));
}

/* --- the rest --------------------------------------------------------------------------------- */

/*
 * No KERNEL_POLICY_SPI: charon then installs a rekeyed outbound SA only when the peer has shown
 * that it has the inbound one. No KERNEL_NO_POLICY_UPDATES: policies follow an address that moves.
 */
METHOD(kernel_ipsec_t, get_features, kernel_feature_t, private_ipsec_t *this)
{
	kernel_feature_t features = 0;

#if HAS_SA_USE_TIME
	features |= KERNEL_SA_USE_TIME;
#endif
	return features;
}

/* Lockgate leaves IKE on UDP 500 and 4500 to the kernel's sockets without being asked. */
METHOD(kernel_ipsec_t, bypass_socket, bool, private_ipsec_t *this, int fd, int family)
{
	return TRUE;
}

METHOD(kernel_ipsec_t, enable_udp_decap, bool, private_ipsec_t *this, int fd, int family,
       uint16_t port)
{
	return TRUE;
}

METHOD(kernel_ipsec_t, destroy, void, private_ipsec_t *this)
{
	lg_names_destroy(this->names);
	lg_session_destroy(this->session);
	free(this);
}

kernel_ipsec_t *lockgate_ipsec_create(void)
{
	private_ipsec_t *this;
	const struct lg_link_settings settings = {
		.path = lib->settings->get_str(lib->settings, "%s.plugins.lockgate.socket",
					       DEFAULT_SOCKET, lib->ns),
		.peer = 0,
		.charon = VERSION,
		.plugin = LOCKGATE_VERSION,
	};
	const struct lg_session_calls calls = {
		.event = on_event,
		.log = on_log,
	};

	INIT(this,
		.public = {
			.get_features = _get_features,
			.get_spi = _get_spi,
			.get_cpi = _get_cpi,
			.add_sa = _add_sa,
			.update_sa = _update_sa,
			.query_sa = _query_sa,
			.del_sa = _del_sa,
			.flush_sas = _flush_sas,
			.add_policy = _add_policy,
			.query_policy = _query_policy,
			.del_policy = _del_policy,
			.flush_policies = _flush_policies,
			.bypass_socket = _bypass_socket,
			.enable_udp_decap = _enable_udp_decap,
			.destroy = _destroy,
		},
	);
	this->session = lg_session_create(&settings, &calls);
	if (!this->session) {
		DBG1(DBG_KNL, "lockgate: no memory, no thread, or too long a socket path ('%s'): "
			      "IT REFUSES ALL IPSEC", settings.path);
		free(this);
		return lockgate_refusal_create();
	}
	this->names = lg_names_create(this->session);
	return &this->public;
}

/* --- refusal ---------------------------------------------------------------------------------- */

/* More than any version has: which call is at which place is what cannot be relied on. */
#define CALLS 32

static status_t refuse_call(void)
{
	DBG1(DBG_KNL, "lockgate: built for another strongSwan, refuses all IPsec");
	return FAILED;
}

kernel_ipsec_t *lockgate_refusal_create(void)
{
	static status_t (*calls[CALLS])(void);

	_Static_assert(sizeof(kernel_ipsec_t) <= sizeof(calls), "calls of kernel_ipsec_t");
	for (int i = 0; i < CALLS; i++)
		calls[i] = refuse_call;
	return (kernel_ipsec_t *)calls;
}
