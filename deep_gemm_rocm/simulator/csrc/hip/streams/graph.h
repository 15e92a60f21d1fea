// Graphs: nodes of work and the dependencies between them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../base/abi.h"
#include "../base/host_memory.h"
#include "work.h"

struct GraphNode {
  Graph* graph;
  Work work;
  std::vector<GraphNode*> dependencies;
  const GraphNode* original;  // the node that this one was cloned from
  bool enabled;                   // in an executable graph
  std::vector<void*> parameters;  // pointers to arguments, for hipKernelNodeParams
};

// An object of the program that graphs keep alive by reference counting.
struct UserObject {
  void* object;
  hipHostFn_t destroy;
  unsigned references;
};

struct Graph {
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Nodes are known by their handle as long as they live.
  GraphNode* add(Work work, std::vector<GraphNode*> dependencies);
  void remove(GraphNode* node);

  // A deep copy. Its nodes refer to the original ones.
  std::shared_ptr<Graph> clone() const;
  GraphNode* find_clone(const GraphNode* original) const;  // null where there is none

  // The nodes, each behind its dependencies; fails with hipErrorInvalidValue where there is a cycle.
  std::vector<GraphNode*> in_order() const;

  std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order in which they were added
  std::map<hipUserObject_t, unsigned> user_objects;
  bool has_handle = false;
  bool is_child = false;  // a node of another graph owns it
};

struct GraphExec {
  GraphExec(const Graph& source, unsigned long long flags);

  void run() const;
  // The executable's own copy of a node of the graph that it was made from; fails with hipErrorInvalidValue.
  GraphNode& own(const GraphNode* original);

  std::shared_ptr<Graph> graph;
  std::vector<GraphNode*> order;
  unsigned long long flags;
};

// Fail with hipErrorInvalidHandle where the handle is invalid.
std::shared_ptr<Graph> graph_of(hipGraph_t graph);
std::shared_ptr<GraphNode> node_of(hipGraphNode_t node);

hipGraph_t handle_of(const std::shared_ptr<Graph>& graph);
void forget_graph(Graph& graph);

// The nodes behind an array of handles, which must all be the graph's.
std::vector<GraphNode*> nodes_of(const Graph* graph, In<hipGraphNode_t> handles, size_t count);

void release_user_object(hipUserObject_t handle, unsigned count);
