// Where the keys or values of one sequence and head are in memory. Strides are in bytes.
#pragma once

#include "deep_gemm_rocm/attention/attention_tile.h"
#include "deep_gemm_rocm/attention/page_size.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/conditional.h"
#include "deep_gemm_rocm/hardware/global.h"

namespace deep_gemm_rocm {

// Tokens of a run, which begins at a multiple of this. A page holds a multiple of it; _RUN_TOKENS in problems/heads.py.
constexpr int kRunTokens = 16;

// Tokens in pages. A page's number is looked up ahead of time.
template <class PageSize>
struct PagedTokens {
  static constexpr bool kPaged = true;

  const uint8_t* first;
  int64_t page_stride;
  unsigned token_stride;  // a page is below 2 GiB
  const int* table;
  PageSize page_size;
  int last_page, count;

  DG_DEVICE PagedTokens(const AttentionArguments& args, const HeadsTensor& tensor, int element_bytes,
                        const QueryTile& tile, int head)
      : first(static_cast<const uint8_t*>(tensor.data) + head * tensor.head_stride * element_bytes),
        page_stride(tensor.batch_stride * element_bytes),
        token_stride(static_cast<unsigned>(tensor.token_stride) * element_bytes),
        table(args.block_table + tile.sequence * args.block_table_stride),
        page_size(args.page_shift),
        last_page(args.num_pages - 1),
        count(tile.keys.count) {
    // Makes the compiler load the same arguments as for PowerOfTwo. Otherwise it loads others four at a time, and
    // reserves scratch for them that nothing uses.
    if constexpr (!kIsSame<PageSize, PowerOfTwo>) asm("" : : "s"(args.page_shift), "s"(args.num_pages));
  }

  // The block table's entry for a token. Tokens past the last one repeat that one.
  DG_DEVICE int entry_of(int token) const {
    return *(const Global<int>*)(table + page_size.page_of(min(token, count - 1)));
  }

  DG_DEVICE const uint8_t* address(int entry, int token) const {
    const unsigned in_page = page_size.in_page(min(token, count - 1));
    return first + min(max(entry, 0), last_page) * page_stride + in_page * token_stride;
  }

  // A buffer of the run from `token` on, whose page has this entry. Each token has `bytes` bytes. Tokens past the last
  // one aren't in the buffer. Arguments are uniform.
  DG_DEVICE Buffer run(int entry, int token, int bytes) const {
    const int tokens = min(count - token, kRunTokens);
    return Buffer{address(entry, token), (tokens - 1) * token_stride + bytes}.only_if(tokens > 0);
  }
};

// Tokens that follow each other in memory, without pages.
struct ConsecutiveTokens {
  static constexpr bool kPaged = false;

  const uint8_t* first;
  int64_t token_stride;
  int count;

  DG_DEVICE ConsecutiveTokens(const AttentionArguments&, const HeadsTensor& tensor, int element_bytes,
                              const QueryTile& tile, int head)
      : first(static_cast<const uint8_t*>(tensor.data) +
              tensor.offset(tile.sequence, tile.keys.first, head) * element_bytes),
        token_stride(tensor.token_stride * element_bytes),
        count(tile.keys.count) {}

  DG_DEVICE Buffer run(int, int token, int bytes) const {
    const int tokens = min(count - token, kRunTokens);
    const auto size = static_cast<unsigned>((tokens - 1) * token_stride + bytes);
    return Buffer{first + token * token_stride, size}.only_if(tokens > 0);
  }
};

}  // namespace deep_gemm_rocm
