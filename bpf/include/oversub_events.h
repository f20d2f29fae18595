/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the kernel side of the probes tells the user side: one record of 64 bytes.
 *
 * This file is the only definition. The programs include it; src/event.rs mirrors it and
 * is checked against the compiled type at build time. Plain C integers, explicit padding,
 * every name with the prefix ovs_, because BTF names are global.
 */
#ifndef OVERSUB_EVENTS_H
#define OVERSUB_EVENTS_H

/* ovs_event.kind; the soft GPU's probe points use the same numbers as their cookies. */
enum ovs_kind {
	/* Faults of one block in one batch, before they are served. */
	OVS_FAULT = 1,
	/* A batch was served: faults = in the batch, duration_ns = from its first fault. */
	OVS_BATCH = 2,
	/* Bytes moved: direction, cause (UvmEventMigrationCause's internal numbers). */
	OVS_MIGRATION = 3,
	/* Pages appeared on the device without a transfer. */
	OVS_POPULATE = 4,
	/* A block lost device memory: cause = enum ovs_eviction. */
	OVS_EVICTION = 5,
	/* The driver's fault service loop begins; and ends, with its duration. */
	OVS_SERVICE_BEGIN = 6,
	OVS_SERVICE_END = 7,
	/* A process made a managed range. */
	OVS_RANGE = 8,
	/* The driver sees processors fight for pages. */
	OVS_THRASHING = 9,
	/* It makes one of them wait. */
	OVS_THROTTLE = 10,
	/* An address space is no more. */
	OVS_SPACE_END = 11,
};

/* ovs_event.direction */
enum ovs_direction {
	OVS_IN = 0,
	OVS_OUT = 1,
	/* Between two devices, or two places of the host. */
	OVS_ACROSS = 2,
};

/* ovs_event.cause of an eviction. */
enum ovs_eviction {
	/* Nothing had to be copied. On nvidia-uvm this includes discarded blocks. */
	OVS_UNUSED = 0,
	OVS_DISCARDED = 1,
	OVS_USED = 2,
};

/* ovs_event.source */
enum ovs_source {
	OVS_SOFTGPU = 1,
	OVS_UVM = 2,
};

/* ovs_event.flags */
#define OVS_BY_HOST 1
/* An eviction for the sake of faults, not of a call. */
#define OVS_IN_SERVICE 2

struct ovs_event {
	/* CLOCK_MONOTONIC; of an aggregated record: its first fault. */
	unsigned long long time_ns;
	/* Of the program; of a fault the first faulted byte. */
	unsigned long long address;
	unsigned long long bytes;
	/* The driver's address space, opaque; 0: the soft GPU. */
	unsigned long long space;
	unsigned long long duration_ns;
	/* Process, in the initial pid namespace; 0: not known. */
	unsigned int tgid;
	/* After the driver's merging of duplicates; raw_faults before it. Both 0, like the
	   bytes of a migration: not known, because the driver's structures are not read. */
	unsigned int faults;
	unsigned int raw_faults;
	/* Of an eviction: the process that needed the room; 0: not known. */
	unsigned int batch;
	/* The driver's processor number of the device; 0: the host or not known. */
	unsigned short processor;
	unsigned char kind;
	unsigned char cause;
	unsigned char direction;
	unsigned char flags;
	unsigned char source;
	unsigned char reserved;
};

/* One open file of the driver's device; programs/spaces.bpf.c. */
struct ovs_space_file {
	unsigned long long private_data;
	unsigned int tgid;
	unsigned int fd;
};

#define OVS_BLOCK_BYTES (2ull << 20)

#endif
