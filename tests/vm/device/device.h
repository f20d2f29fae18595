/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A software GPU behind the interface that nvidia-uvm.ko imports from nvidia.ko.
 *
 * Only for a guest made for tests: physical addresses that the driver writes
 * into page tables and copy commands are followed as they are.
 *
 *   walk.c       physical memory and the page tables that the driver writes
 *   copy.c       the copy engine
 *   channel.c    pushbuffers: host methods, semaphores, TLB invalidation
 *   fault.c      fault packets, replay, and launches that touch memory
 *   view.c       the device's address space as a mapping of a program
 *   transfer.c   copies between a program and the device's address space
 *   rm_*.c       the entry points that the driver calls
 *   main.c       parameters, the device's life, its version in procfs, /dev/softgpu
 */
#ifndef SOFTGPU_DEVICE_H
#define SOFTGPU_DEVICE_H

#include "uvm_linux.h"
#include "nv_uvm_interface.h"
#include "rm_version.h"
#include "softgpu_abi.h"

#include <linux/irq_work.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/types.h>
#include <linux/wait.h>

#define GRANULE (2ull << 20)	/* video memory is handed out in these */
#define FAULT_ENTRIES 2048
#define FAULT_ENTRY_BYTES 32

/* One field of a method or table entry, by its name in the class headers. */
#define FIELD_LOW(name) (0 ? name)
#define FIELD_HIGH(name) (1 ? name)
#define FIELD_MASK(name) (~0ull >> (63 - (FIELD_HIGH(name) - FIELD_LOW(name))))
#define FIELD(value, name) (((u64)(value) >> FIELD_LOW(name)) & FIELD_MASK(name))

enum model { MODEL_PASCAL, MODEL_TURING };

/* A GPU address space: the driver's own, or a program's. */
struct gpu_space {
	struct list_head node;
	u64 directory;		/* physical address of the root page table */
	bool directory_in_vidmem;
	bool has_directory;
};

/* Memory that RM gave the driver: not in the page tables, looked up by address. */
struct rm_memory {
	struct list_head node;
	struct gpu_space *space;
	u64 address, bytes;
	void *cpu;
};

/* A channel of the driver: a ring of pushbuffers, and the state that methods set. */
struct channel {
	struct list_head node;
	struct gpu_space *space;
	u64 *ring;
	u32 entries, get, resume;
	volatile u32 *registers;
	NvNotification *error;
	u32 token;
	bool dead;
	struct {
		u32 address_hi, address_lo, payload;
		u32 op_a, op_b, op_c;
	} host;
	struct {
		u32 in_hi, in_lo, out_hi, out_lo, bytes;
		u32 const_a, const_b, remap;
		u32 source_mode, target_mode;
		u32 semaphore_hi, semaphore_lo, payload;
	} copy;
};

/* A program's channel: nothing runs on it, but faults carry its instance. */
struct user_channel {
	struct list_head node;
	struct gpu_space *space;
	NvHandle handle;
	u64 instance;
};

/* Where a virtual address leads. */
struct translation {
	void *cpu;
	phys_addr_t physical;	/* of the same byte, in the guest */
	u64 left;		/* bytes to the end of the page */
	u64 page;		/* size of the page */
	bool in_vidmem, read_only, no_atomics;
};

/* An open /dev/softgpu. */
struct view {
	u32 channel;
	bool bound;
	u32 faulted_at;		/* replays seen when the last packet was written */
	u32 cancels_seen;
};

enum gpu_register {
	REG_GET, REG_PUT, REG_INFO, REG_INTR, REG_ENABLE, REG_DISABLE, REG_PREFETCH, REG_COUNT,
};

struct software_gpu {
	NvProcessorUuid uuid;
	struct pci_dev *pci;
	enum model model;

	/* Over everything below that is not said to be otherwise. */
	struct mutex lock;
	struct list_head spaces, memory, channels, user_channels;
	u64 next_address, next_instance;
	u32 next_channel;

	/* Video memory: one physically contiguous piece for each granule. */
	struct page **granules;
	unsigned long *taken;
	u64 memory_bytes;
	UvmPmaStatistics statistics;

	volatile u32 registers[REG_COUNT];
	u32 *fault_buffer;
	volatile u32 clock[2];
	bool faults_on;
	struct irq_work interrupt;
	struct UvmOpsUvmEvents *driver;	/* its callbacks; read without the lock */

	atomic_t replays, cancels;
	wait_queue_head_t replayed;
	struct address_space *view_mapping;
	unsigned int open_views;

	struct task_struct *engine;
	struct softgpu_info done;
};

extern struct software_gpu gpu;
extern bool drop_copies;

/* walk.c; the lock is held */
void *gpu_physical(bool in_vidmem, u64 address, u64 *left);
bool gpu_walk(struct gpu_space *space, u64 address, struct translation *to);
bool gpu_translate(struct gpu_space *space, u64 address, struct translation *to);

/* copy.c; the lock is held. False: an address is not mapped. */
bool copy_launch(struct channel *channel, u32 command);
bool semaphore_release(struct channel *channel, u64 address, u32 payload, bool with_time);

/* channel.c; the lock is held */
bool channels_run(void);

/* fault.c */
bool fault_push(struct user_channel *channel, u64 address, u32 access, u32 type);
void fault_raise(void);
void fault_replay(bool cancel);
bool fault_check(const struct translation *to, u32 access, u32 *type);
struct user_channel *user_channel_find(u32 handle);
int fault_touch(u32 handle, struct softgpu_touch *touch);
int fault_settle(struct view *view, struct softgpu_settle *settle);

/* view.c */
int view_mmap(struct file *file, struct vm_area_struct *vma);
void view_forget(u64 address, u64 bytes);	/* the lock is held */

/* transfer.c */
ssize_t transfer_read(struct file *file, char __user *user, size_t count, loff_t *position);
ssize_t transfer_write(struct file *file, const char __user *user, size_t count, loff_t *position);

#endif
