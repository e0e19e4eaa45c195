/* SPDX-License-Identifier: MIT */
/*
 * The plugin "lockgate" of charon.
 *
 * It always registers. charon takes the first plugin that offers "kernel-ipsec"; if this one did
 * not, kernel-netlink would, and SAs would be in the kernel, past Lockgate. So it is loaded before
 * kernel-netlink (lockgate.conf), whose networking half stays in use, and it neither waits for
 * lockgated nor fails without it. In a charon of another version than it was built for, it takes
 * the place too, and fails every call.
 */
#include <daemon.h>
#include <library.h>
#include <plugins/plugin.h>

#include "ipsec.h"
#include "version.h"

/* The version of charon that this was built for; only a test builds with another. */
#ifndef BUILT_FOR
#define BUILT_FOR VERSION
#endif

METHOD(plugin_t, get_name, char *, plugin_t *this)
{
	return "lockgate";
}

METHOD(plugin_t, get_features, int, plugin_t *this, plugin_feature_t *features[])
{
	static plugin_feature_t serving[] = {
		PLUGIN_CALLBACK(kernel_ipsec_register, lockgate_ipsec_create),
		PLUGIN_PROVIDE(CUSTOM, "kernel-ipsec"),
	};
	static plugin_feature_t refusing[] = {
		PLUGIN_CALLBACK(kernel_ipsec_register, lockgate_refusal_create),
		PLUGIN_PROVIDE(CUSTOM, "kernel-ipsec"),
	};

	if (lg_program_contains_version(BUILT_FOR)) {
		*features = serving;
		return countof(serving);
	}
	DBG1(DBG_KNL, "lockgate: built for strongSwan %s, which this charon is not: "
		      "IT REFUSES ALL IPSEC. Install the lockgate-charon of your strongSwan.",
	     BUILT_FOR);
	*features = refusing;
	return countof(refusing);
}

METHOD(plugin_t, destroy, void, plugin_t *this)
{
	free(this);
}

/* From 6.0.3 on charon checks the version of a plugin by itself. */
#ifdef PLUGIN_DEFINE
PLUGIN_DEFINE(lockgate)
#else
plugin_t *lockgate_plugin_create(void);

plugin_t *lockgate_plugin_create(void)
#endif
{
	plugin_t *this;

	INIT(this,
		.get_name = _get_name,
		.get_features = _get_features,
		.destroy = _destroy,
	);
	return this;
}
