// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Access counters, which the driver wants to find from Turing on: a buffer in
 * which nothing is ever notified.
 */
#include "device.h"

#define NOTIFICATIONS 256
#define NOTIFICATION_BYTES 32

enum { GET, PUT, FULL, INTERRUPT, ENABLE, DISABLE, WORDS };

static u8 buffer[NOTIFICATIONS * NOTIFICATION_BYTES];
static volatile NvU32 words[WORDS];

NV_STATUS nvUvmInterfaceInitAccessCntrInfo(uvmGpuDeviceHandle device, UvmGpuAccessCntrInfo *info,
					   NvU32 index)
{
	memset(info, 0, sizeof(*info));
	info->pAccessCntrBufferGet = &words[GET];
	info->pAccessCntrBufferPut = &words[PUT];
	info->pAccessCntrBufferFull = &words[FULL];
	info->pHubIntr = &words[INTERRUPT];
	info->pHubIntrEnSet = &words[ENABLE];
	info->pHubIntrEnClear = &words[DISABLE];
	info->accessCounterMask = 1;
	info->bufferAddress = buffer;
	info->bufferSize = sizeof(buffer);
	info->accessCntrBufferHandle = 1;
	return NV_OK;
}

NV_STATUS nvUvmInterfaceDestroyAccessCntrInfo(uvmGpuDeviceHandle device, UvmGpuAccessCntrInfo *info)
{
	return NV_OK;
}

NV_STATUS nvUvmInterfaceEnableAccessCntr(RM_ENABLE_ACCESS_PARAMETERS)
{
	return NV_OK;
}

NV_STATUS nvUvmInterfaceDisableAccessCntr(uvmGpuDeviceHandle device, UvmGpuAccessCntrInfo *info)
{
	return NV_OK;
}
