/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What user space says to /dev/softgpu. The same structures stand in Rust in
 * runtime-shim/uvm/src/softgpu.rs; keep both alike.
 */
#ifndef SOFTGPU_ABI_H
#define SOFTGPU_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Kinds of access, as the hardware numbers them in a fault packet. */
enum softgpu_access {
	SOFTGPU_READ = 0,
	SOFTGPU_WRITE = 1,
	SOFTGPU_ATOMIC = 2,
	SOFTGPU_PREFETCH = 3,
};

/* The device and what it did since it was loaded. */
struct softgpu_info {
	__u8 uuid[16];
	__u64 memory_bytes;	/* video memory */
	__u64 free_bytes;	/* of it, in nobody's hands */
	__u64 pushes;		/* pushbuffers run */
	__u64 copies;		/* copies and memsets */
	__u64 copied_bytes;
	__u64 invalidates;	/* of the TLB */
	__u64 replays;
	__u64 cancels;
	__u64 fault_packets;
	__u64 interrupts;
	__u64 dropped_copies;	/* see the parameter drop_copies */
};

/* Binds the descriptor to the address space of a registered channel. */
struct softgpu_bind {
	__u32 channel;		/* the handle given to UVM_REGISTER_CHANNEL */
	__u32 pad;
};

/* A launch whose accesses are an arithmetic sequence. */
struct softgpu_touch {
	__u32 access;		/* enum softgpu_access */
	__u32 in_flight;	/* most faults before it waits for a replay */
	__u64 address, count, stride;
	__u64 value;		/* element i is written value + i; a read's sum comes back */
	__u32 timeout_ms;
	__s32 result;		/* out: 0, or -EFAULT, -ETIMEDOUT, -EINTR */
	__u64 faults;		/* out: packets written */
	__u64 waits;		/* out: times that it waited for a replay */
	__u64 device_hits;	/* out: accesses that found video memory */
	__u64 host_hits;	/* out: accesses that found system memory */
};

/* Waits for the replay of what this descriptor's mapping faulted on. */
struct softgpu_settle {
	__u32 timeout_ms;
	__u32 cancelled;	/* out: a fault was cancelled, not served */
};

#define SOFTGPU_INFO _IOR('G', 1, struct softgpu_info)
#define SOFTGPU_BIND _IOW('G', 2, struct softgpu_bind)
#define SOFTGPU_TOUCH _IOWR('G', 3, struct softgpu_touch)
#define SOFTGPU_SETTLE _IOWR('G', 4, struct softgpu_settle)

/*
 * mmap with MAP_SHARED shows the bound address space: the file offset is the
 * device's virtual address. An access that the device's page tables do not
 * allow writes a fault packet and raises SIGBUS; repeat it after SETTLE.
 * pread and pwrite copy from and to the bound address space, and wait for
 * faults themselves.
 */

#endif
