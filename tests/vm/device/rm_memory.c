// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What the driver asks RM for memory: address spaces, buffers for itself, and
 * video memory in pieces of 2 MiB.
 */
#include "device.h"

#include <linux/slab.h>
#include <linux/vmalloc.h>

#define RM_ALIGNMENT 65536ull

static struct gpu_space *space_create(void)
{
	struct gpu_space *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return NULL;
	mutex_lock(&gpu.lock);
	list_add_tail(&space->node, &gpu.spaces);
	mutex_unlock(&gpu.lock);
	return space;
}

static void space_describe(UvmGpuAddressSpaceInfo *info)
{
	memset(info, 0, sizeof(*info));
	info->bigPageSize = 65536;
	info->time0Offset = (volatile NvU32 *)&gpu.clock[0];
	info->time1Offset = (volatile NvU32 *)&gpu.clock[1];
}

NV_STATUS nvUvmInterfaceAddressSpaceCreate(uvmGpuDeviceHandle device, unsigned long long base,
					   unsigned long long size, RM_ATS_ARGUMENT
					   uvmGpuAddressSpaceHandle *handle,
					   UvmGpuAddressSpaceInfo *info)
{
	struct gpu_space *space = space_create();

	if (!space)
		return NV_ERR_NO_MEMORY;
	space_describe(info);
	*handle = (uvmGpuAddressSpaceHandle)space;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceDupAddressSpace(uvmGpuDeviceHandle device, NvHandle client, NvHandle vaspace,
					uvmGpuAddressSpaceHandle *handle,
					UvmGpuAddressSpaceInfo *info)
{
	struct gpu_space *space = space_create();

	if (!space)
		return NV_ERR_NO_MEMORY;
	space_describe(info);
	*handle = (uvmGpuAddressSpaceHandle)space;
	return NV_OK;
}

void nvUvmInterfaceAddressSpaceDestroy(uvmGpuAddressSpaceHandle handle)
{
	struct gpu_space *space = (struct gpu_space *)handle;
	struct user_channel *channel;

	if (!space)
		return;
	mutex_lock(&gpu.lock);
	list_for_each_entry(channel, &gpu.user_channels, node)
		WARN_ON(channel->space == space);
	list_del(&space->node);
	mutex_unlock(&gpu.lock);
	kfree(space);
}

NV_STATUS nvUvmInterfaceSetPageDirectory(uvmGpuAddressSpaceHandle handle, NvU64 address,
					 unsigned entries, NvBool in_vidmem, NvU32 pasid
					 RM_DIRECTORY_ARGUMENT)
{
	struct gpu_space *space = (struct gpu_space *)handle;

	mutex_lock(&gpu.lock);
	space->directory = address;
	space->directory_in_vidmem = in_vidmem;
	space->has_directory = true;
	mutex_unlock(&gpu.lock);
	return NV_OK;
}

NV_STATUS nvUvmInterfaceUnsetPageDirectory(uvmGpuAddressSpaceHandle handle)
{
	struct gpu_space *space = (struct gpu_space *)handle;

	mutex_lock(&gpu.lock);
	space->has_directory = false;
	view_forget(0, 0);
	mutex_unlock(&gpu.lock);
	return NV_OK;
}

/* Buffers of the driver's own: pushbuffers, semaphores. */
static NV_STATUS allocate(uvmGpuAddressSpaceHandle handle, NvLength bytes, UvmGpuPointer *address,
			  UvmGpuAllocInfo *how)
{
	struct rm_memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL);

	if (!memory)
		return NV_ERR_NO_MEMORY;
	memory->cpu = vzalloc(bytes);
	if (!memory->cpu) {
		kfree(memory);
		return NV_ERR_NO_MEMORY;
	}
	memory->space = (struct gpu_space *)handle;
	memory->bytes = bytes;
	mutex_lock(&gpu.lock);
	gpu.next_address = ALIGN(gpu.next_address, max_t(u64, how->alignment, RM_ALIGNMENT));
	memory->address = gpu.next_address;
	gpu.next_address += ALIGN(bytes, RM_ALIGNMENT);
	list_add(&memory->node, &gpu.memory);
	mutex_unlock(&gpu.lock);
	*address = memory->address;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceMemoryAllocFB(uvmGpuAddressSpaceHandle space, NvLength bytes,
				      UvmGpuPointer *address, UvmGpuAllocInfo *how)
{
	return allocate(space, bytes, address, how);
}

NV_STATUS nvUvmInterfaceMemoryAllocSys(uvmGpuAddressSpaceHandle space, NvLength bytes,
				       UvmGpuPointer *address, UvmGpuAllocInfo *how)
{
	return allocate(space, bytes, address, how);
}

static struct rm_memory *find(uvmGpuAddressSpaceHandle space, UvmGpuPointer address)
{
	struct rm_memory *memory;

	list_for_each_entry(memory, &gpu.memory, node)
		if (memory->space == (struct gpu_space *)space && memory->address == address)
			return memory;
	return NULL;
}

void nvUvmInterfaceMemoryFree(uvmGpuAddressSpaceHandle space, UvmGpuPointer address)
{
	struct rm_memory *memory;

	mutex_lock(&gpu.lock);
	memory = find(space, address);
	if (memory)
		list_del(&memory->node);
	mutex_unlock(&gpu.lock);
	if (WARN_ON(!memory))
		return;
	vfree(memory->cpu);
	kfree(memory);
}

NV_STATUS nvUvmInterfaceMemoryCpuMap(uvmGpuAddressSpaceHandle space, UvmGpuPointer address,
				     NvLength bytes, void **cpu, NvU64 page)
{
	struct rm_memory *memory;

	mutex_lock(&gpu.lock);
	memory = find(space, address);
	if (memory)
		*cpu = memory->cpu;
	mutex_unlock(&gpu.lock);
	return memory ? NV_OK : NV_ERR_INVALID_ADDRESS;
}

void nvUvmInterfaceMemoryCpuUnMap(uvmGpuAddressSpaceHandle space, void *cpu)
{
}

/* Video memory. */
NV_STATUS nvUvmInterfaceGetPmaObject(uvmGpuDeviceHandle device, void **pma,
				     const UvmPmaStatistics **statistics)
{
	*pma = &gpu;
	*statistics = &gpu.statistics;
	return NV_OK;
}

/* RM takes nothing back: device memory of programs is not modelled. */
NV_STATUS nvUvmInterfacePmaRegisterEvictionCallbacks(void *pma, uvmPmaEvictPagesCallback pages,
						     uvmPmaEvictRangeCallback range, void *data)
{
	return NV_OK;
}

void nvUvmInterfacePmaUnregisterEvictionCallbacks(void *pma)
{
}

static void note_free(s64 granules)
{
	gpu.statistics.numFreePages2m += granules;
	gpu.statistics.numFreePages64k += granules * 32;
}

NV_STATUS nvUvmInterfacePmaAllocPages(void *pma, NvLength count, NvU64 page,
				      UvmPmaAllocationOptions *options, NvU64 *addresses)
{
	u64 granules = gpu.memory_bytes / GRANULE, index;
	NvLength got = 0;

	if (page != GRANULE)
		return NV_ERR_NOT_SUPPORTED;
	mutex_lock(&gpu.lock);
	for_each_clear_bit(index, gpu.taken, granules) {
		if (got == count)
			break;
		addresses[got++] = index * GRANULE;
	}
	if (!got || (got < count && !(options->flags & UVM_PMA_ALLOCATE_ALLOW_PARTIAL))) {
		mutex_unlock(&gpu.lock);
		return NV_ERR_NO_MEMORY;
	}
	for (index = 0; index < got; index++)
		__set_bit(addresses[index] / GRANULE, gpu.taken);
	note_free(-(s64)got);
	mutex_unlock(&gpu.lock);
	options->numPagesAllocated = got;
	options->resultFlags = 0;
	return NV_OK;
}

void nvUvmInterfacePmaFreePages(void *pma, NvU64 *addresses, NvLength count, NvU64 page, NvU32 flags)
{
	NvLength index;
	u64 address;

	mutex_lock(&gpu.lock);
	for (index = 0; index < count; index++) {
		address = flags & UVM_PMA_ALLOCATE_CONTIGUOUS ? addresses[0] + index * page
							      : addresses[index];
		if (!WARN_ON(!__test_and_clear_bit(address / GRANULE, gpu.taken)))
			note_free(1);
	}
	mutex_unlock(&gpu.lock);
}

NV_STATUS nvUvmInterfacePmaPinPages(void *pma, NvU64 *addresses, NvLength count, NvU64 page,
				    NvU32 flags)
{
	return NV_OK;
}
