// Keys and values that lie in pages.
#pragma once

#include "deep_gemm_rocm/decode_arguments.h"
#include "deep_gemm_rocm/global.h"

namespace deep_gemm_rocm {

// One sequence's pages. A run of neighbouring tokens that lies in one page is addressed by that page, which is looked
// up ahead of time. Tokens past the last one of the sequence stand for that one, so that whatever is loaded exists.
class SequencePages {
 public:
  DG_DEVICE SequencePages(const DecodeArguments& args, int sequence)
      : table_(args.block_table + sequence * args.block_table_stride),
        page_shift_(args.page_shift),
        last_page_(args.num_pages - 1),
        tokens_(min(max(args.context_lens[sequence], 0), args.pages_of_sequence << args.page_shift)) {}

  DG_DEVICE int tokens() const { return tokens_; }

  DG_DEVICE int page_of(int token) const {
    const int page = *(const Global<int>*)(table_ + (existing(token) >> page_shift_));
    return min(max(page, 0), last_page_);
  }

  // Where a head's vector of a token begins.
  template <class T>
  DG_DEVICE const uint8_t* address(const PagedTensor& tensor, int head, int page, int token) const {
    const int in_page = existing(token) & ((1 << page_shift_) - 1);
    const int64_t element = page * tensor.page_stride + in_page * tensor.token_stride + head * tensor.head_stride;
    return static_cast<const uint8_t*>(tensor.data) + element * static_cast<int64_t>(sizeof(T));
  }

 private:
  DG_DEVICE int existing(int token) const { return min(token, tokens_ - 1); }

  const int* table_;
  int page_shift_;
  int last_page_;
  int tokens_;
};

}  // namespace deep_gemm_rocm
