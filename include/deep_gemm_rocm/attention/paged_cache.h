// Keys and values in pages.
#pragma once

#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/attention/decode_arguments.h"
#include "deep_gemm_rocm/hardware/global.h"

namespace deep_gemm_rocm {

// The tokens of a sequence's context_len that its pages have room for.
DG_DEVICE int existing_tokens(const DecodeArguments& args, int context_len) {
  return min(max(context_len, 0), args.pages_of_sequence << args.page_shift);
}

// One sequence's pages. A page is looked up ahead of time, for a run of neighbouring tokens in it. Tokens past the last
// one of the sequence stand for that one, so that loads are in bounds.
class SequencePages {
 public:
  DG_DEVICE SequencePages(const DecodeArguments& args, int sequence)
      : table_(args.block_table + sequence * args.block_table_stride),
        page_shift_(args.page_shift),
        last_page_(args.num_pages - 1),
        tokens_(existing_tokens(args, args.context_lens[sequence])) {}

  DG_DEVICE int tokens() const { return tokens_; }

  // The table's entry for a token, unchecked.
  DG_DEVICE int entry_of(int token) const { return *(const Global<int>*)(table_ + (existing(token) >> page_shift_)); }

  DG_DEVICE int page_of(int token) const { return existing_page(entry_of(token)); }

  // The address of a token's vector of a head.
  template <class T>
  DG_DEVICE const uint8_t* address(const PagedTensor& tensor, int head, int page, int token) const {
    const int in_page = existing(token) & ((1 << page_shift_) - 1);
    const int64_t element = page * tensor.page_stride + in_page * tensor.token_stride + head * tensor.head_stride;
    return static_cast<const uint8_t*>(tensor.data) + element * static_cast<int64_t>(sizeof(T));
  }

  // The vectors of the first head of a run of neighbouring tokens in one page, of table entry `entry`. Arguments are
  // uniform. Tokens past the sequence's last one aren't in the buffer.
  template <class T>
  DG_DEVICE Buffer run(const PagedTensor& tensor, int entry, int first, int tokens, int width) const {
    const int existing_tokens = min(tokens, tokens_ - first);
    const int last = (existing_tokens - 1) * static_cast<int>(tensor.token_stride);
    return Buffer{address<T>(tensor, 0, existing_page(entry), first), (last + width) * static_cast<unsigned>(sizeof(T))}
        .only_if(existing_tokens > 0);
  }

 private:
  DG_DEVICE int existing(int token) const { return min(token, tokens_ - 1); }
  DG_DEVICE int existing_page(int entry) const { return min(max(entry, 0), last_page_); }

  const int* table_;
  int page_shift_;
  int last_page_;
  int tokens_;
};

}  // namespace deep_gemm_rocm
