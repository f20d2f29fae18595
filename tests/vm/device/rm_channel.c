// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What the driver asks RM for channels: its own, and those of programs. */
#include "device.h"
#include "clc06f.h"
#include "clc46f.h"

#include <linux/slab.h>
#include <linux/vmalloc.h>

/* Places in a channel's page of registers, in words. */
#define WORD_GET 0
#define WORD_PUT 1
#define WORD_DUMMY 8
#define WORD_DOORBELL 16

NV_STATUS nvUvmInterfaceTsgAllocate(uvmGpuAddressSpaceHandle space,
				    const UvmGpuTsgAllocParams *parameters, uvmGpuTsgHandle *group)
{
	/* A group is its address space. */
	*group = (uvmGpuTsgHandle)space;
	return NV_OK;
}

void nvUvmInterfaceTsgDestroy(uvmGpuTsgHandle group)
{
}

static void channel_free(struct channel *channel)
{
	vfree(channel->ring);
	free_page((unsigned long)channel->registers);
	kfree((void *)channel->error);
	kfree(channel);
}

NV_STATUS nvUvmInterfaceChannelAllocate(const uvmGpuTsgHandle group,
					const UvmGpuChannelAllocParams *parameters,
					uvmGpuChannelHandle *handle, UvmGpuChannelInfo *info)
{
	struct channel *channel = kzalloc(sizeof(*channel), GFP_KERNEL);

	if (!channel)
		return NV_ERR_NO_MEMORY;
	channel->space = (struct gpu_space *)group;
	channel->entries = parameters->numGpFifoEntries;
	channel->ring = vzalloc(channel->entries * sizeof(*channel->ring));
	channel->registers = (void *)get_zeroed_page(GFP_KERNEL);
	channel->error = kcalloc(4, sizeof(*channel->error), GFP_KERNEL);
	if (!channel->ring || !channel->registers || !channel->error) {
		channel_free(channel);
		return NV_ERR_NO_MEMORY;
	}
	memset(info, 0, sizeof(*info));
	info->gpGet = (volatile unsigned *)&channel->registers[WORD_GET];
	info->gpPut = (volatile unsigned *)&channel->registers[WORD_PUT];
	info->gpFifoEntries = (UvmGpuPointer *)channel->ring;
	info->numGpFifoEntries = channel->entries;
	info->channelClassNum = gpu.model == MODEL_PASCAL ? PASCAL_CHANNEL_GPFIFO_A
							  : TURING_CHANNEL_GPFIFO_A;
	info->errorNotifier = channel->error;
	info->dummyBar1Mapping = (volatile unsigned *)&channel->registers[WORD_DUMMY];
	info->workSubmissionOffset = (volatile NvU32 *)&channel->registers[WORD_DOORBELL];
	info->pWorkSubmissionToken = &channel->token;
	mutex_lock(&gpu.lock);
	info->hwChannelId = channel->token = ++gpu.next_channel;
	list_add_tail(&channel->node, &gpu.channels);
	mutex_unlock(&gpu.lock);
	*handle = (uvmGpuChannelHandle)channel;
	return NV_OK;
}

void nvUvmInterfaceChannelDestroy(uvmGpuChannelHandle handle)
{
	struct channel *channel = (struct channel *)handle;

	mutex_lock(&gpu.lock);
	list_del(&channel->node);
	mutex_unlock(&gpu.lock);
	channel_free(channel);
}

/* Channels of programs: known by the handle that the program names. */
NV_STATUS nvUvmInterfaceRetainChannel(uvmGpuAddressSpaceHandle space, NvHandle client,
				      NvHandle handle, void **retained,
				      UvmGpuChannelInstanceInfo *info)
{
	struct user_channel *channel = kzalloc(sizeof(*channel), GFP_KERNEL);

	if (!channel)
		return NV_ERR_NO_MEMORY;
	memset(info, 0, sizeof(*info));
	mutex_lock(&gpu.lock);
	if (user_channel_find(handle)) {
		mutex_unlock(&gpu.lock);
		kfree(channel);
		return NV_ERR_INSERT_DUPLICATE_NAME;
	}
	channel->space = (struct gpu_space *)space;
	channel->handle = handle;
	channel->instance = gpu.next_instance;
	gpu.next_instance += 4096;
	info->base = channel->instance;
	info->chId = ++gpu.next_channel;
	info->channelEngineType = UVM_GPU_CHANNEL_ENGINE_TYPE_GR;
	list_add_tail(&channel->node, &gpu.user_channels);
	mutex_unlock(&gpu.lock);
	*retained = channel;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceBindChannelResources(void *retained, UvmGpuChannelResourceBindParams *bind)
{
	return NV_OK;
}

void nvUvmInterfaceStopChannel(void *retained, NvBool immediate)
{
}

void nvUvmInterfaceReleaseChannel(void *retained)
{
	struct user_channel *channel = retained;

	mutex_lock(&gpu.lock);
	list_del(&channel->node);
	mutex_unlock(&gpu.lock);
	kfree(channel);
}
