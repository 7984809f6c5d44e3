// Paged attention of one layer: what the table of kernels takes from here.
//
// Rows are (token, query head) pairs that share a KV head. Keys are cut at fixed absolute
// positions, for every row alike: blocks of 64 keys, sections of 512. Inside a section the blocks
// are taken in order (online softmax); the sections' partial results merge in order. So a row's
// bits depend on its query and its keys alone, whichever task, thread or neighbour it is computed
// with.
#pragma once

#include "kernels.h"

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kKeys = kKeysPerBlock;
inline constexpr int kSectionKeys = kKeysPerSection;
inline constexpr int kSectionBlocks = kSectionKeys / kKeys;
inline constexpr int kMaxTaskTokens = 32;
inline constexpr int kMaxRowTokens = 12;  // tasks of up to this many tokens use the row kernel

AttentionPlan plan_attention(const AttentionArgs& args, int num_threads, AttentionTask* tasks,
                             int max_tasks);
void attention(const AttentionArgs& args, const AttentionTask& task, void* scratch);
size_t attention_scratch_bytes(int num_heads, int num_kv_heads, int head_dim);

}  // namespace evenflow::EVENFLOW_ISA
