// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What the driver asks RM about the device: identity, capabilities, the fault
 * buffer, interrupts. What is not here answers NV_ERR_NOT_SUPPORTED: those
 * entry points are made from the interface's header when the module is built.
 */
#include "device.h"
#include "clc06f.h"
#include "clc0b5.h"
#include "clc46f.h"
#include "clc5b5.h"

/* Names of UVM's uvm_gpu.h and the chip manuals, which the interface only numbers. */
#define ARCHITECTURE_PASCAL 0x130
#define ARCHITECTURE_TURING 0x160
#define COPY_ENGINES 2
/* The DMA addresses that both models can reach. */
#define DMA_LIMIT ((1ull << 46) - 1)
#define SHADOW_ENTRIES 64

static u8 non_replayable[SHADOW_ENTRIES * FAULT_ENTRY_BYTES];

NV_STATUS nvUvmInterfaceSessionCreate(uvmGpuSessionHandle *session, UvmPlatformInfo *platform)
{
	memset(platform, 0, sizeof(*platform));
	*session = (uvmGpuSessionHandle)&gpu;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceSessionDestroy(uvmGpuSessionHandle session)
{
	return NV_OK;
}

NV_STATUS nvUvmInterfaceRegisterUvmCallbacks(struct UvmOpsUvmEvents *callbacks)
{
	WRITE_ONCE(gpu.driver, callbacks);
	return NV_OK;
}

void nvUvmInterfaceDeRegisterUvmOps(void)
{
	WRITE_ONCE(gpu.driver, NULL);
	irq_work_sync(&gpu.interrupt);
}

static bool is_ours(const NvProcessorUuid *uuid)
{
	return gpu.pci && !memcmp(uuid->uuid, gpu.uuid.uuid, sizeof(gpu.uuid.uuid));
}

NV_STATUS nvUvmInterfaceRegisterGpu(const NvProcessorUuid *uuid, UvmGpuPlatformInfo *info)
{
	if (!is_ours(uuid))
		return NV_ERR_GPU_UUID_NOT_FOUND;
	info->pci_dev = gpu.pci;
	info->dma_addressable_start = 0;
	info->dma_addressable_limit = DMA_LIMIT;
	return NV_OK;
}

void nvUvmInterfaceUnregisterGpu(const NvProcessorUuid *uuid)
{
}

NV_STATUS nvUvmInterfaceGetGpuInfo(const NvProcessorUuid *uuid, const UvmGpuClientInfo *client,
				   UvmGpuInfo *info)
{
	if (!is_ours(uuid))
		return NV_ERR_GPU_UUID_NOT_FOUND;
	memset(info, 0, sizeof(*info));
	info->uuid = gpu.uuid;
	if (gpu.model == MODEL_PASCAL) {
		snprintf(info->name, sizeof(info->name), "Software GP100");
		info->gpuArch = ARCHITECTURE_PASCAL;
		info->hostClass = PASCAL_CHANNEL_GPFIFO_A;
		info->ceClass = PASCAL_DMA_COPY_A;
		info->computeClass = 0xc0c0;	/* PASCAL_COMPUTE_A */
	} else {
		snprintf(info->name, sizeof(info->name), "Software TU102");
		info->gpuArch = ARCHITECTURE_TURING;
		info->gpuImplementation = 2;
		info->hostClass = TURING_CHANNEL_GPFIFO_A;
		info->ceClass = TURING_DMA_COPY_A;
		info->computeClass = 0xc5c0;	/* TURING_COMPUTE_A */
	}
	info->subdeviceCount = 1;
	info->virtMode = UVM_VIRT_MODE_NONE;
	info->gpcCount = info->maxGpcCount = 2;
	info->tpcCount = 4;
	info->maxTpcPerGpcCount = 2;
	info->sysmemLink = UVM_LINK_TYPE_PCIE;
	info->sysmemLinkRateMBps = 15000;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceDeviceCreate(uvmGpuSessionHandle session, const UvmGpuInfo *info,
				     const NvProcessorUuid *uuid, uvmGpuDeviceHandle *device,
				     NvBool partition)
{
	*device = (uvmGpuDeviceHandle)&gpu;
	return NV_OK;
}

void nvUvmInterfaceDeviceDestroy(uvmGpuDeviceHandle device)
{
}

NV_STATUS nvUvmInterfaceQueryCaps(uvmGpuDeviceHandle device, UvmGpuCaps *caps)
{
	memset(caps, 0, sizeof(*caps));
	return NV_OK;
}

NV_STATUS nvUvmInterfaceQueryCopyEnginesCaps(uvmGpuDeviceHandle device, UvmGpuCopyEnginesCaps *caps)
{
	int engine;

	memset(caps, 0, sizeof(*caps));
	for (engine = 0; engine < COPY_ENGINES; engine++) {
		caps->copyEngineCaps[engine].supported = NV_TRUE;
		caps->copyEngineCaps[engine].sysmem = NV_TRUE;
		caps->copyEngineCaps[engine].sysmemRead = NV_TRUE;
		caps->copyEngineCaps[engine].sysmemWrite = NV_TRUE;
		caps->copyEngineCaps[engine].p2p = NV_TRUE;
	}
	return NV_OK;
}

NV_STATUS nvUvmInterfaceGetFbInfo(uvmGpuDeviceHandle device, UvmGpuFbInfo *info)
{
	memset(info, 0, sizeof(*info));
	info->maxAllocatableAddress = gpu.memory_bytes - 1;
	info->heapSize = gpu.memory_bytes >> 10;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceGetEccInfo(uvmGpuDeviceHandle device, UvmGpuEccInfo *info)
{
	memset(info, 0, sizeof(*info));
	return NV_OK;
}

#ifdef RM_HAS_NVLINK_INFO
NV_STATUS nvUvmInterfaceGetNvlinkInfo(uvmGpuDeviceHandle device, UvmGpuNvlinkInfo *info)
{
	memset(info, 0, sizeof(*info));
	return NV_OK;
}
#endif

/* Faults. */
NV_STATUS nvUvmInterfaceOwnPageFaultIntr(uvmGpuDeviceHandle device, NvBool driver_owns)
{
	return NV_OK;
}

NV_STATUS nvUvmInterfaceInitFaultInfo(uvmGpuDeviceHandle device, UvmGpuFaultInfo *info)
{
	memset(info, 0, sizeof(*info));
	mutex_lock(&gpu.lock);
	memset((void *)gpu.registers, 0, sizeof(gpu.registers));
	memset(gpu.fault_buffer, 0, FAULT_ENTRIES * FAULT_ENTRY_BYTES);
	info->replayable.pFaultBufferGet = (volatile NvU32 *)&gpu.registers[REG_GET];
	info->replayable.pFaultBufferPut = (volatile NvU32 *)&gpu.registers[REG_PUT];
	info->replayable.pFaultBufferInfo = (volatile NvU32 *)&gpu.registers[REG_INFO];
	info->replayable.pPmcIntr = (volatile NvU32 *)&gpu.registers[REG_INTR];
	info->replayable.pPmcIntrEnSet = (volatile NvU32 *)&gpu.registers[REG_ENABLE];
	info->replayable.pPmcIntrEnClear = (volatile NvU32 *)&gpu.registers[REG_DISABLE];
	info->replayable.pPrefetchCtrl = (volatile NvU32 *)&gpu.registers[REG_PREFETCH];
	info->replayable.replayableFaultMask = 1;
	info->replayable.bufferAddress = gpu.fault_buffer;
	info->replayable.bufferSize = FAULT_ENTRIES * FAULT_ENTRY_BYTES;
#ifdef RM_HAS_FAULT_BUFFER_OWNER
	info->replayable.bUvmOwnsHwFaultBuffer = NV_TRUE;
#endif
	if (gpu.model != MODEL_PASCAL) {
		info->nonReplayable.shadowBufferAddress = non_replayable;
		info->nonReplayable.bufferSize = sizeof(non_replayable);
	}
	info->faultBufferHandle = 1;
	gpu.faults_on = true;
	mutex_unlock(&gpu.lock);
	return NV_OK;
}

NV_STATUS nvUvmInterfaceDestroyFaultInfo(uvmGpuDeviceHandle device, UvmGpuFaultInfo *info)
{
	mutex_lock(&gpu.lock);
	gpu.faults_on = false;
	mutex_unlock(&gpu.lock);
	irq_work_sync(&gpu.interrupt);
	info->faultBufferHandle = 0;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceFlushReplayableFaultBuffer(RM_FLUSH_PARAMETERS)
{
	return NV_OK;
}

NV_STATUS nvUvmInterfaceHasPendingNonReplayableFaults(UvmGpuFaultInfo *info, NvBool *pending)
{
	*pending = NV_FALSE;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceGetNonReplayableFaults(UvmGpuFaultInfo *info, void *buffer, NvU32 *count)
{
	*count = 0;
	return NV_OK;
}

#ifdef RM_HAS_TOGGLE_PREFETCH_FAULTS
NV_STATUS nvUvmInterfaceTogglePrefetchFaults(UvmGpuFaultInfo *info, NvBool enable)
{
	return NV_OK;
}
#endif
