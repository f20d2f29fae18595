// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Probes on the soft GPU: uprobes on its five probe points, which are functions that do
 * nothing. The cookie of the attachment says which one was hit (enum ovs_kind); arguments
 * are read at the width in which the soft GPU passes them.
 */
#include "emit.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline int softgpu_event(struct pt_regs *ctx)
{
	__u64 kind = bpf_get_attach_cookie(ctx);
	struct ovs_event *event;

	if (kind < OVS_FAULT || kind > OVS_EVICTION)
		return 0;
	event = ovs_reserve(kind, OVS_SOFTGPU);
	if (!event)
		return 0;
	event->tgid = ovs_tgid();
	switch (kind) {
	case OVS_FAULT: /* address, faults, by_host, batch */
		event->address = PT_REGS_PARM1(ctx);
		event->faults = PT_REGS_PARM2(ctx);
		event->raw_faults = event->faults;
		event->flags = (__u8)PT_REGS_PARM3(ctx) ? OVS_BY_HOST : 0;
		event->batch = PT_REGS_PARM4(ctx);
		break;
	case OVS_BATCH: /* batch, faults, service_ns */
		event->batch = PT_REGS_PARM1(ctx);
		event->faults = PT_REGS_PARM2(ctx);
		event->raw_faults = event->faults;
		event->duration_ns = PT_REGS_PARM3(ctx);
		break;
	case OVS_MIGRATION: /* address, bytes, direction, cause */
		event->address = PT_REGS_PARM1(ctx);
		event->bytes = PT_REGS_PARM2(ctx);
		event->direction = PT_REGS_PARM3(ctx);
		event->cause = PT_REGS_PARM4(ctx);
		break;
	case OVS_POPULATE: /* address, bytes */
		event->address = PT_REGS_PARM1(ctx);
		event->bytes = PT_REGS_PARM2(ctx);
		break;
	case OVS_EVICTION: /* address, bytes, kind */
		event->address = PT_REGS_PARM1(ctx);
		event->bytes = PT_REGS_PARM2(ctx);
		event->cause = PT_REGS_PARM3(ctx);
		break;
	}
	ovs_submit(event);
	return 0;
}

/* All five probe points of a file by one attachment; Linux 6.6 and later. */
SEC("?uprobe.multi")
int softgpu_multi(struct pt_regs *ctx)
{
	return softgpu_event(ctx);
}

/* One attachment each, before that. */
SEC("?uprobe")
int softgpu_single(struct pt_regs *ctx)
{
	return softgpu_event(ctx);
}
