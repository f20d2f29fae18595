//! Entry points that programs are linked to and that the soft GPU does not have.
//!
//! They are exported, so that such a program starts, and each call is refused and counted
//! by name. `cuGetProcAddress` does not know them: who asks is told the truth.

use crate::abi::CuResult;
use crate::stats;

macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            /// Not supported: refused and counted.
            ///
            /// # Safety
            /// None needed: no argument is looked at, and in the C calling convention the
            /// caller takes away what it passed.
            #[allow(non_snake_case)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() -> CuResult {
                stats::count_unsupported(stringify!($name));
                CuResult::NOT_SUPPORTED
            }
        )*

        /// Their names.
        pub static UNSUPPORTED: &[&str] = &[$(stringify!($name)),*];
    };
}

unsupported! {
    cuGraphCreate cuGraphDestroy cuGraphClone cuGraphInstantiate_v2 cuGraphInstantiateWithFlags
    cuGraphInstantiateWithParams cuGraphLaunch cuGraphLaunch_ptsz cuGraphUpload
    cuGraphExecDestroy cuGraphExecUpdate_v2 cuGraphGetNodes cuGraphAddNode cuGraphAddNode_v2
    cuGraphAddKernelNode_v2 cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetParams_v2
    cuGraphExecKernelNodeSetParams_v2 cuGraphAddMemcpyNode cuGraphAddMemsetNode
    cuGraphAddHostNode cuGraphAddEmptyNode cuGraphNodeGetType cuGraphNodeGetDependencies
    cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamEndCapture
    cuStreamEndCapture_ptsz cuStreamUpdateCaptureDependencies
    cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap
    cuMemSetAccess cuMemGetAccess cuMemGetAllocationGranularity
    cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemRetainAllocationHandle
    cuMemGetAllocationPropertiesFromHandle cuMemMapArrayAsync
    cuIpcGetMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuIpcGetEventHandle
    cuIpcOpenEventHandle
    cuArrayCreate_v2 cuArray3DCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2
    cuArray3DGetDescriptor_v2 cuMipmappedArrayCreate cuMipmappedArrayDestroy
    cuTexObjectCreate cuTexObjectDestroy cuSurfObjectCreate cuSurfObjectDestroy
    cuTexRefCreate cuTexRefDestroy cuModuleGetTexRef cuModuleGetSurfRef
    cuTensorMapEncodeTiled cuTensorMapEncodeIm2col
    cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2DAsync_v2 cuMemcpy3D_v2 cuMemcpy3DAsync_v2
    cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyBatchAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync
    cuMemcpyDtoA_v2 cuMemcpyAtoD_v2 cuMemcpyHtoA_v2 cuMemcpyAtoH_v2 cuMemcpyAtoA_v2
    cuMemsetD2D8_v2 cuMemsetD2D16_v2 cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D16Async
    cuMemsetD2D32Async
    cuMemPoolCreate cuMemPoolDestroy cuMemPoolSetAccess cuMemPoolGetAccess
    cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle
    cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLibraryGetKernel
    cuLibraryGetModule cuLibraryGetGlobal cuLibraryGetManaged cuKernelGetFunction
    cuKernelGetAttribute cuKernelSetAttribute cuKernelSetCacheConfig cuKernelGetName
    cuLinkCreate_v2 cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkDestroy
    cuModuleLoadFatBinary cuModuleGetLoadingMode cuModuleGetFunctionCount
    cuModuleEnumerateFunctions cuFuncSetSharedMemConfig cuFuncIsLoaded cuFuncLoad
    cuLaunchCooperativeKernelMultiDevice cuStreamBatchMemOp_v2 cuStreamCopyAttributes
    cuStreamGetAttribute cuStreamSetAttribute cuStreamGetGreenCtx
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxPotentialClusterSize
    cuOccupancyMaxActiveClusters
    cuCtxEnablePeerAccess cuCtxDisablePeerAccess cuDeviceGetP2PAttribute
    cuCtxGetCacheConfig cuCtxSetCacheConfig cuCtxGetSharedMemConfig cuCtxSetSharedMemConfig
    cuCtxResetPersistingL2Cache cuCtxAttach cuCtxDetach
    cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetExecAffinitySupport
    cuDeviceGraphMemTrim cuDeviceGetGraphMemAttribute cuDeviceSetGraphMemAttribute
    cuImportExternalMemory cuExternalMemoryGetMappedBuffer cuDestroyExternalMemory
    cuImportExternalSemaphore cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync
    cuDestroyExternalSemaphore cuGraphicsUnregisterResource cuGraphicsMapResources
    cuGraphicsUnmapResources cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem
    cuFlushGPUDirectRDMAWrites cuMemGetHandleForAddressRange
    cuProfilerStart cuProfilerStop cuGreenCtxCreate cuGreenCtxDestroy
}
