/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The tables of the kernel tier of overlays, made by the process, which shares them
 * among the programs of all netdevs: see src/tier.rs.
 */
#ifndef LOCKGATE_TABLES_H
#define LOCKGATE_TABLES_H

#include "frame.h"

/* 0 -> until when the tables hold. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lockgate_lease);
} lease SEC(".maps");

/* Number -> overlay, and where its packets come in. One that is to change is closed
 * before, for a while, as everything below is.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOCKGATE_MAX_TIER_OVERLAYS);
	__type(key, __u32);
	__type(value, struct lockgate_overlay);
} overlays SEC(".maps");

/* Number -> network, and whether its packets are answered here: one write closes it,
 * or makes all verdicts on its flows be of an earlier generation.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_network);
} networks SEC(".maps");

/* Buckets of places, which lead from an endpoint to its record: src/index.rs. The
 * kernel's hashes use an element for another key while a program still reads it; a
 * place is one word, and the record repeats its key.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_bucket);
} endpoint_index SEC(".maps");

/* A record is written only while no slot leads to it, nor has for a while. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_endpoint);
} endpoint_records SEC(".maps");

/* From a flow of a network with groups to its record, likewise. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_bucket);
} flow_index SEC(".maps");

/* A record is written only while no slot leads to it, nor has for a while. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_flow);
} flow_records SEC(".maps");

/* Ways to hosts: changed only while closed, and having been so for a while. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_way);
} ways SEC(".maps");

/* Slot of an endpoint -> packets that it sent or was sent; written here only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

/* Slot of a flow -> its packets that a verdict was found for; written here only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* set when it is loaded */
	__type(key, __u32);
	__type(value, struct lockgate_flow_use);
} flow_hits SEC(".maps");

/* Interface index -> the netdev that a packet leaves by. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, LOCKGATE_MAX_EXITS);
	__type(key, __u32);
	__type(value, __u32);
} exits SEC(".maps");

/* Why a frame is the worker's -> frames, per CPU; written here only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOCKGATE_MISSES);
	__type(key, __u32);
	__type(value, __u64);
} misses SEC(".maps");

/* What was answered, one packet of so many: read by the process now and then, which
 * judges it again. Who writes is not awaited, and wakes nobody.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* set when it is loaded */
} samples SEC(".maps");

/* 0 -> samples that found no room, per CPU; written here only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} unheard SEC(".maps");

#endif
