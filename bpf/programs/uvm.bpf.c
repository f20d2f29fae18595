// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Probes on nvidia-uvm: on global functions that are called from another file of the
 * driver, so no compiler inlines them (checked from 535.183.01 to 595.45.04). Each is there
 * twice, as a kprobe and, for hosts whose module describes its types and whose operator
 * allows it to be pinned, as fentry or fexit.
 *
 * Everything goes through uvm_perf_event_notify, which the driver calls for every fault and
 * migration. Where the layout of its structures is not known, two functions whose arguments
 * say enough stand in for it (the last two below): blocks, directions and causes, but no
 * bytes and no counts.
 */
#include "uvm_events.h"
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The only kernel type whose layout is asked of the running kernel. */
struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
} __attribute__((preserve_access_index));

/* void uvm_perf_event_notify(uvm_perf_va_space_events_t *, uvm_perf_event_t,
 *                            uvm_perf_event_data_t *); uvm_perf_events.c */
SEC("?kprobe")
int uvm_notify(struct pt_regs *ctx)
{
	return notify(PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx));
}

SEC("?fentry")
int uvm_notify_fentry(__u64 *ctx)
{
	return notify(ctx[0], ctx[1], ctx[2]);
}

/* void uvm_[parent_]gpu_service_replayable_faults(gpu); uvm_gpu_replayable_faults.c */
static __always_inline int service_begin(void)
{
	struct ovs_service fresh = {};
	__u32 key = thread();
	struct ovs_event *event;

	fresh.begin_ns = bpf_ktime_get_ns();
	bpf_map_update_elem(&ovs_services, &key, &fresh, BPF_ANY);
	event = ovs_reserve(OVS_SERVICE_BEGIN, OVS_UVM);
	if (event)
		ovs_submit(event);
	return 0;
}

static __always_inline int service_end(void)
{
	struct ovs_service *service = service_of_thread();
	struct ovs_event *event;
	__u32 key = thread();
	__u64 begin_ns;

	if (!service)
		return 0;
	flush(service);
	begin_ns = service->begin_ns;
	bpf_map_delete_elem(&ovs_services, &key);
	event = ovs_reserve(OVS_SERVICE_END, OVS_UVM);
	if (event) {
		if (begin_ns)
			event->duration_ns = event->time_ns - begin_ns;
		ovs_submit(event);
	}
	return 0;
}

SEC("?kprobe")
int uvm_service_begin(struct pt_regs *ctx)
{
	return service_begin();
}

SEC("?kretprobe")
int uvm_service_end(struct pt_regs *ctx)
{
	return service_end();
}

SEC("?fentry")
int uvm_service_begin_fentry(__u64 *ctx)
{
	return service_begin();
}

SEC("?fexit")
int uvm_service_end_fexit(__u64 *ctx)
{
	return service_end();
}

/* void uvm_tools_broadcast_replay(uvm_gpu_t *, uvm_push_t *, NvU32 batch_id,
 *                                 uvm_fault_client_type_t); uvm_tools.c */
static __always_inline int replay(__u32 batch)
{
	struct ovs_service *service = service_of_thread();
	struct ovs_event *event;

	if (!service)
		return 0;
	flush(service);
	/* A replay without faults of its own: a second client of the same batch. */
	if (!service->batch_faults)
		return 0;
	event = ovs_reserve(OVS_BATCH, OVS_UVM);
	if (event) {
		event->batch = batch;
		event->faults = service->batch_faults;
		event->raw_faults = service->batch_raw_faults;
		event->space = service->space;
		event->tgid = process_of(service->space);
		event->processor = service->processor;
		event->duration_ns = event->time_ns - service->batch_first_ns;
		ovs_submit(event);
	}
	service->batch_faults = 0;
	service->batch_raw_faults = 0;
	return 0;
}

SEC("?kprobe")
int uvm_replay(struct pt_regs *ctx)
{
	return replay(PT_REGS_PARM3(ctx));
}

SEC("?fentry")
int uvm_replay_fentry(__u64 *ctx)
{
	return replay(ctx[2]);
}

/* NV_STATUS uvm_va_block_evict_chunks(uvm_va_block_t *, uvm_gpu_t *, uvm_gpu_chunk_t *,
 *                                     uvm_tracker_t *); uvm_va_block.c */
static __always_inline int evict_begin(__u64 block)
{
	struct ovs_evicting evicting = {};
	__u32 key = thread();

	evicting.begin_ns = bpf_ktime_get_ns();
	if (ovs_layout.block_start) {
		__u64 start = read_u64(block, ovs_layout.block_start);
		__u64 end = read_u64(block, ovs_layout.block_end);

		/* Else the copies' addresses say which block it is. */
		if (start < end && end - start < OVS_BLOCK_BYTES) {
			evicting.start = start;
			evicting.end = end;
		}
	}
	bpf_map_update_elem(&ovs_evictings, &key, &evicting, BPF_ANY);
	return 0;
}

/* Who needed the room: the process whose faults this thread serves, or the caller. */
static __always_inline void name_payer(struct ovs_event *event)
{
	struct ovs_service *service = service_of_thread();

	if (service && service->begin_ns) {
		event->flags = OVS_IN_SERVICE;
		event->batch = process_of(service->space);
	} else {
		event->batch = ovs_tgid();
	}
}

static __always_inline int evict_end(__u32 status)
{
	__u32 key = thread();
	struct ovs_evicting *evicting = bpf_map_lookup_elem(&ovs_evictings, &key);
	struct ovs_event *event;

	if (!evicting)
		return 0;
	/* NV_OK: a failed eviction freed nothing. */
	event = status ? 0 : ovs_reserve(OVS_EVICTION, OVS_UVM);
	if (event) {
		event->address = evicting->start;
		event->bytes = evicting->end ? evicting->end - evicting->start + 1 : 0;
		event->space = evicting->space;
		event->tgid = process_of(evicting->space);
		event->duration_ns = event->time_ns - evicting->begin_ns;
		event->cause = evicting->copies ? OVS_USED : OVS_UNUSED;
		event->processor = evicting->processor;
		name_payer(event);
		ovs_submit(event);
	}
	bpf_map_delete_elem(&ovs_evictings, &key);
	return 0;
}

SEC("?kprobe")
int uvm_evict_begin(struct pt_regs *ctx)
{
	return evict_begin(PT_REGS_PARM1(ctx));
}

SEC("?kretprobe")
int uvm_evict_end(struct pt_regs *ctx)
{
	return evict_end(PT_REGS_RC(ctx));
}

SEC("?fentry")
int uvm_evict_begin_fentry(__u64 *ctx)
{
	return evict_begin(ctx[0]);
}

SEC("?fexit")
int uvm_evict_end_fexit(__u64 *ctx)
{
	return evict_end(ctx[4]);
}

/* void uvm_tools_record_thrashing(uvm_va_space_t *, NvU64 address, size_t,
 *                                 const uvm_processor_mask_t *); uvm_tools.c */
SEC("?kprobe")
int uvm_thrashing(struct pt_regs *ctx)
{
	struct ovs_event *event = ovs_reserve(OVS_THRASHING, OVS_UVM);

	if (!event)
		return 0;
	event->space = PT_REGS_PARM1(ctx);
	event->tgid = process_of(event->space);
	event->address = PT_REGS_PARM2(ctx);
	event->bytes = PT_REGS_PARM3(ctx);
	ovs_submit(event);
	return 0;
}

/* void uvm_tools_record_throttling_start(uvm_va_space_t *, NvU64 address,
 *                                        uvm_processor_id_t); uvm_tools.c */
SEC("?kprobe")
int uvm_throttle(struct pt_regs *ctx)
{
	struct ovs_event *event = ovs_reserve(OVS_THROTTLE, OVS_UVM);

	if (!event)
		return 0;
	event->space = PT_REGS_PARM1(ctx);
	event->tgid = process_of(event->space);
	event->address = PT_REGS_PARM2(ctx);
	event->processor = PT_REGS_PARM3(ctx);
	ovs_submit(event);
	return 0;
}

/* NV_STATUS uvm_va_range_create_mmap(uvm_va_space_t *, struct mm_struct *,
 *                                    uvm_vma_wrapper_t *, ...); uvm_va_range.c */
SEC("?kprobe")
int uvm_range_create(struct pt_regs *ctx)
{
	__u64 space = PT_REGS_PARM1(ctx);
	__u64 wrapper = PT_REGS_PARM3(ctx);
	__u32 tgid = ovs_tgid();
	struct vm_area_struct *vma;
	struct ovs_event *event;

	bpf_map_update_elem(&ovs_spaces, &space, &tgid, BPF_ANY);
	event = ovs_reserve(OVS_RANGE, OVS_UVM);
	if (!event)
		return 0;
	vma = (struct vm_area_struct *)read_u64(wrapper, 0);
	event->space = space;
	event->tgid = tgid;
	event->address = BPF_CORE_READ(vma, vm_start);
	event->bytes = BPF_CORE_READ(vma, vm_end) - event->address;
	ovs_submit(event);
	return 0;
}

/* void uvm_va_space_destroy(uvm_va_space_t *); uvm_va_space.c. Its memory will be another
 * address space's. */
SEC("?kprobe")
int uvm_space_destroy(struct pt_regs *ctx)
{
	__u64 space = PT_REGS_PARM1(ctx);
	struct ovs_event *event = ovs_reserve(OVS_SPACE_END, OVS_UVM);

	if (event) {
		event->space = space;
		event->tgid = process_of(space);
		ovs_submit(event);
	}
	bpf_map_delete_elem(&ovs_spaces, &space);
	return 0;
}

/* NV_STATUS uvm_va_block_find_create_in_range(uvm_va_space_t *, uvm_va_range_t *,
 *                                             NvU64 address, uvm_va_block_t **);
 * uvm_va_block.c. While faults are served: once for each block of a batch, with the first
 * faulted address. */
SEC("?kprobe")
int uvm_block_fault(struct pt_regs *ctx)
{
	struct ovs_service *service = service_of_thread();
	struct ovs_event *event;
	__u64 space;

	if (!service || !service->begin_ns)
		return 0;
	space = PT_REGS_PARM1(ctx);
	service->space = space;
	event = ovs_reserve(OVS_FAULT, OVS_UVM);
	if (!event)
		return 0;
	event->address = PT_REGS_PARM3(ctx);
	event->space = space;
	event->tgid = process_of(space);
	ovs_submit(event);
	return 0;
}

/* Argument number n of a function, from 0 on. */
static __always_inline __u64 argument(struct pt_regs *ctx, __u32 n)
{
	switch (n) {
	case 2:
		return PT_REGS_PARM3(ctx);
	case 3:
		return PT_REGS_PARM4(ctx);
	case 4:
		return PT_REGS_PARM5(ctx);
#if defined(__TARGET_ARCH_x86)
	case 5:
		return PT_REGS_PARM6(ctx);
	default:
		/* Behind the return address. */
		return read_u64(PT_REGS_SP(ctx), (n - 5) * 8);
#else
	default:
		return PT_REGS_PARM6(ctx);
#endif
	}
}

/* uvm_tools_record_block_migration_begin, uvm_tools_record_migration_begin; uvm_tools.c:
 * once for each copy of pages of a block. */
SEC("?kprobe")
int uvm_block_migration(struct pt_regs *ctx)
{
	__u32 dst = argument(ctx, ovs_layout.begin_dst);
	__u32 src = argument(ctx, ovs_layout.begin_src);
	__u64 address = argument(ctx, ovs_layout.begin_address);
	__u32 cause = argument(ctx, ovs_layout.begin_cause);

	struct ovs_service *service = service_of_thread();
	__u64 space = 0;

	if (dst > OVS_PROCESSORS || src > OVS_PROCESSORS || cause >= OVS_CAUSES)
		return implausible();
	/* Whose memory is evicted for a fault is not said. */
	if (service && service->begin_ns && cause != ovs_layout.cause_eviction)
		space = service->space;
	return send_migration(space, address, 0, dst, src, cause);
}
