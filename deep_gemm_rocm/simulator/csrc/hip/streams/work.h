// The kinds of work that streams execute and graph nodes hold.
#pragma once

#include <memory>
#include <variant>

#include "../base/abi.h"
#include "../base/fork.h"
#include "../launch/launch.h"
#include "../memory/transfer.h"

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

// A wait for an event. Work runs in the order in which it is given, so there is nothing to do.
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
