/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The ring to user space, and what every program does to write to it.
 *
 * Each object that includes this has a ring of its own, whose size user space sets before
 * it loads the object, and a counter of the records for which there was no room.
 */
#ifndef OVERSUB_EMIT_H
#define OVERSUB_EMIT_H

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "oversub_events.h"

/* Keeps the record in the object's BTF: otherwise it is known through a pointer only. */
struct ovs_event ovs_event_anchor = {};

/* Records lost because the ring was full. */
__u64 ovs_drops = 0;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} ovs_ring SEC(".maps");

/* A zeroed record of this kind, or NULL (counted). */
static __always_inline struct ovs_event *ovs_reserve(__u8 kind, __u8 source)
{
	struct ovs_event *event = bpf_ringbuf_reserve(&ovs_ring, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&ovs_drops, 1);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->time_ns = bpf_ktime_get_ns();
	event->kind = kind;
	event->source = source;
	return event;
}

/* The kernel wakes the reader only when it had caught up: once per burst. */
static __always_inline void ovs_submit(struct ovs_event *event)
{
	bpf_ringbuf_submit(event, 0);
}

static __always_inline __u32 ovs_tgid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

#endif
