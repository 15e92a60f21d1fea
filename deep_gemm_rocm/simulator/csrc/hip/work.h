// What a stream executes and the nodes of a graph hold.
#pragma once

#include <memory>
#include <variant>

#include "abi.h"
#include "fork.h"
#include "launch.h"
#include "transfer.h"

struct HostWork {
  hipHostFn_t function;
  void* user_data;

  void run() const {
    {
      const MayFork may_fork;
      function(user_data);
    }
    forget_probes();  // it may have unmapped memory
  }
};

struct RecordWork {
  hipEvent_t event;

  void run() const;
};

// Orders what follows behind an event: work runs in the order in which it is given, so there is nothing left to do.
struct WaitWork {
  hipEvent_t event;

  void run() const {}
};

struct EmptyWork {
  void run() const {}
};

struct GraphWork {
  std::shared_ptr<Graph> graph;  // the node's own

  void run() const;
};

// In the order of hipGraphNodeType.
using Work = std::variant<KernelWork, CopyWork, FillWork, HostWork, GraphWork, EmptyWork, WaitWork, RecordWork>;

inline hipGraphNodeType type_of(const Work& work) { return static_cast<hipGraphNodeType>(work.index()); }
inline void run(const Work& work) {
  std::visit([](const auto& kind) { kind.run(); }, work);
}
