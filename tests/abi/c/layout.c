/* Sizes, offsets and values that programs of the original were compiled with. C11, for the assertions. */
#include <ccoip.h>
#include <pccl.h>

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "size of " #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define ALIGNED(type, alignment) _Static_assert(_Alignof(type) == (alignment), "alignment of " #type)
#define VALUE(name, value) _Static_assert((int) (name) == (value), #name)

SIZE(ccoip_ipv4_address_t, 4);
SIZE(ccoip_ipv6_address_t, 16);
SIZE(ccoip_inet_address_t, 24);
ALIGNED(ccoip_inet_address_t, 4);
AT(ccoip_inet_address_t, protocol, 0);
AT(ccoip_inet_address_t, ipv4, 4);
AT(ccoip_inet_address_t, ipv6, 8);
SIZE(ccoip_socket_address_t, 28);
ALIGNED(ccoip_socket_address_t, 4);
AT(ccoip_socket_address_t, inet, 0);
AT(ccoip_socket_address_t, port, 24);
SIZE(pcclCommCreateParams_t, 36);
ALIGNED(pcclCommCreateParams_t, 4);
AT(pcclCommCreateParams_t, master_address, 0);
AT(pcclCommCreateParams_t, peer_group, 28);
AT(pcclCommCreateParams_t, p2p_connection_pool_size, 32);
SIZE(pcclReduceInfo_t, 24);
ALIGNED(pcclReduceInfo_t, 8);
AT(pcclReduceInfo_t, local_world_size, 0);
AT(pcclReduceInfo_t, schedule, 4);
AT(pcclReduceInfo_t, tx_bytes, 8);
AT(pcclReduceInfo_t, rx_bytes, 16);
SIZE(pcclReduceOperandDescriptor_t, 8);
AT(pcclReduceOperandDescriptor_t, datatype, 0);
AT(pcclReduceOperandDescriptor_t, distribution_hint, 4);
SIZE(pcclQuantizationOptions_t, 8);
AT(pcclQuantizationOptions_t, quantized_datatype, 0);
AT(pcclQuantizationOptions_t, algorithm, 4);
SIZE(pcclReduceDescriptor_t, 40);
ALIGNED(pcclReduceDescriptor_t, 8);
AT(pcclReduceDescriptor_t, count, 0);
AT(pcclReduceDescriptor_t, op, 8);
AT(pcclReduceDescriptor_t, tag, 16);
AT(pcclReduceDescriptor_t, src_descriptor, 24);
AT(pcclReduceDescriptor_t, quantization_options, 32);
SIZE(pcclReduceOpDescriptor_t, 56);
SIZE(struct pcclReduceSingleDescriptor_t, 56);
AT(pcclReduceOpDescriptor_t, sendbuf, 0);
AT(pcclReduceOpDescriptor_t, recvbuf, 8);
AT(pcclReduceOpDescriptor_t, descriptor, 16);
SIZE(pcclAsyncReduceOp_t, 16);
AT(pcclAsyncReduceOp_t, comm, 0);
AT(pcclAsyncReduceOp_t, tag, 8);
SIZE(pcclRankUuid_t, 16);
ALIGNED(pcclRankUuid_t, 1);
SIZE(pcclTensorInfo_t, 40);
AT(pcclTensorInfo_t, name, 0);
AT(pcclTensorInfo_t, data, 8);
AT(pcclTensorInfo_t, count, 16);
AT(pcclTensorInfo_t, datatype, 24);
AT(pcclTensorInfo_t, device_type, 28);
AT(pcclTensorInfo_t, allow_content_inequality, 32);
SIZE(pcclSharedState_t, 24);
AT(pcclSharedState_t, revision, 0);
AT(pcclSharedState_t, count, 8);
AT(pcclSharedState_t, infos, 16);
SIZE(pcclSharedStateSyncInfo_t, 16);
AT(pcclSharedStateSyncInfo_t, tx_bytes, 0);
AT(pcclSharedStateSyncInfo_t, rx_bytes, 8);
SIZE(pcclBuildInfo_t, 1);
SIZE(pcclResult_t, 4);
SIZE(pcclDataType_t, 4);
SIZE(pcclWorld_t, 24);
SIZE(pcclOptimized_t, 1104);
AT(pcclOptimized_t, pairwise_gain_pct, 12);
AT(pcclOptimized_t, slowest_mbit_s, 48);
AT(pcclOptimized_t, note, 72);

VALUE(inetIPv4, 0);
VALUE(inetIPv6, 1);
VALUE(pcclSuccess, 0);
VALUE(pcclNotInitialized, 1);
VALUE(pcclInternalError, 2);
VALUE(pcclInvalidArgument, 3);
VALUE(pcclInvalidUsage, 4);
VALUE(pcclTooFewPeers, 5);
VALUE(pcclMasterConnectionFailed, 6);
VALUE(pcclRankConnectionFailed, 7);
VALUE(pcclRankConnectionLost, 8);
VALUE(pcclNoSharedStateAvailable, 9);
VALUE(pcclPendingAsyncOps, 10);
VALUE(pcclUpdateTopologyFailed, 11);
VALUE(pcclTopologyOptimizationFailed, 12);
VALUE(pcclUint8, 0);
VALUE(pcclInt8, 1);
VALUE(pcclInt16, 2);
VALUE(pcclUint16, 3);
VALUE(pcclUint32, 4);
VALUE(pcclInt32, 5);
VALUE(pcclUint64, 6);
VALUE(pcclInt64, 7);
VALUE(pcclFloat16, 8);
VALUE(pcclBFloat16, 9);
VALUE(pcclFloat, 10);
VALUE(pcclDouble, 11);
VALUE(pcclDeviceCpu, 0);
VALUE(pcclDeviceCuda, 1);
VALUE(pcclSum, 0);
VALUE(pcclAvg, 1);
VALUE(pcclProd, 2);
VALUE(pcclMax, 3);
VALUE(pcclMin, 4);
VALUE(PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, 1);
VALUE(PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, 2);
VALUE(PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS, 3);
VALUE(PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE, 4);
VALUE(PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, 0);
VALUE(PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY, 1);
VALUE(PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, 2);
VALUE(pcclDistributionHintNone, 0);
VALUE(PCCL_DISTRIBUTION_HINT_UNIFORM, 2);
VALUE(pcclScheduleAutomatic, 0);
VALUE(pcclScheduleRing, 1);
VALUE(pcclSchedulePairwise, 5);
VALUE(pcclQuantNone, 0);
VALUE(pcclQuantMinMax, 1);
VALUE(pcclQuantZeroPointScale, 2);
VALUE(CCOIP_PROTOCOL_PORT_MASTER, 48148);

int main(void) {
    return 0;
}
