// The loaders of keys and values in pages: those of flash_attention.h, but each lane looks for its tokens' page. A page
// is looked up one block ahead, while the loads of the block before are in flight.
#pragma once

#include "deep_gemm_rocm/attention/attention_tile.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/loading/tile_loader.h"
#include "deep_gemm_rocm/loading/transposing_tile_loader.h"

namespace deep_gemm_rocm {

// One head of a sequence's tokens. Strides are in bytes. Tokens past the last one stand for that one.
struct PagedRows {
  const uint8_t* first;
  int64_t page_stride;
  unsigned token_stride;  // a page is below 2 GiB
  const int* table;
  int page_shift, last_page, last_token;

  DG_DEVICE PagedRows(const AttentionArguments& args, const HeadsTensor& tensor, int element_bytes,
                      const QueryTile& tile, int head)
      : first(static_cast<const uint8_t*>(tensor.data) + head * tensor.head_stride * element_bytes),
        page_stride(tensor.batch_stride * element_bytes),
        token_stride(static_cast<unsigned>(tensor.token_stride) * element_bytes),
        table(args.block_table + tile.sequence * args.block_table_stride),
        page_shift(args.page_shift),
        last_page(args.num_pages - 1),
        last_token(tile.keys.count - 1) {}

  DG_DEVICE int entry_of(int token) const {
    return *(const Global<int>*)(table + (min(token, last_token) >> page_shift));
  }

  DG_DEVICE const uint8_t* address(int entry, int token) const {
    const unsigned in_page = min(token, last_token) & ((1 << page_shift) - 1);
    return first + min(max(entry, 0), last_page) * page_stride + in_page * token_stride;
  }
};

// A TileLoader for keys.
template <class Order, int kKeys, int kThreads, int kHeadBytes>
class PagedKeyLoader : public TileLoader<Order, kKeys, kKeys, kThreads, ceil_div(kHeadBytes, kBlockKBytes), true> {
  using Base = TileLoader<Order, kKeys, kKeys, kThreads, ceil_div(kHeadBytes, kBlockKBytes), true>;

 public:
  using Base::Base;

  DG_DEVICE void look_up(const PagedRows& rows, int pass, int first_key) {
    entry_[pass] = rows.entry_of(key(pass, first_key));
  }

  DG_DEVICE void load(const PagedRows& rows, int d_block, int pass, int first_key) {
    const int in_row = d_block * kBlockKBytes + Base::chunk_k();
    const bool exists = kHeadBytes % kBlockKBytes == 0 || in_row < kHeadBytes;
    const uint8_t* const row = rows.address(entry_[pass], key(pass, first_key));
    const Chunk chunk = load_global<Chunk>(row + (exists ? in_row : 0));
    Base::staged_[d_block][pass] = exists ? chunk : Chunk{};
  }

 private:
  static DG_DEVICE int key(int pass, int first_key) { return first_key + Order::of_lds_row(Base::lds_row(pass)); }

  int entry_[Base::kPasses];
};

// A TransposingTileLoader for values. The keys of a chunk are in one page.
template <class T, int kValueDim, int kValueRows, int kThreads>
class PagedValueLoader : public TransposingTileLoader<T, RowsInOrder, kValueRows, kThreads, 1> {
  using Base = TransposingTileLoader<T, RowsInOrder, kValueRows, kThreads, 1>;

 public:
  using Base::Base;

  DG_DEVICE void look_up(const PagedRows& rows, int pass, int first_key) {
    entry_[pass] = rows.entry_of(first_key + Base::chunk(pass) * Base::kUnitLoads);
  }

  DG_DEVICE void load(const PagedRows& rows, int pass, int first_key) {
    const int run = first_key + Base::chunk(pass) * Base::kUnitLoads;
    const int value = min(Base::row(pass), kValueDim - Base::kUnitRows);  // those past the last ones aren't used
    const uint8_t* next = rows.address(entry_[pass], run) + value * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < Base::kUnitLoads; ++i) {
      Base::staged_[0][pass][i] = load_global<unsigned>(next);
      next += run + i < rows.last_token ? rows.token_stride : 0;
    }
  }

 private:
  int entry_[Base::kPasses];
};

}  // namespace deep_gemm_rocm
