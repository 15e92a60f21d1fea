#include "graph.h"

#include <algorithm>
#include <unordered_map>

#include "../base/handles.h"
#include "../base/status.h"

namespace {

// Never destroyed: static destructors of the host program may still call HIP.
Handles<Graph>& graphs() {
  static auto& handles = *new Handles<Graph>("a graph");
  return handles;
}

Handles<GraphNode>& nodes() {
  static auto& handles = *new Handles<GraphNode>("a node of a graph");
  return handles;
}

// The graph of a node is the node's own.
Work copy_of(const Work& work) {
  if (const auto* child = std::get_if<GraphWork>(&work)) return GraphWork{child->graph->clone()};
  return work;
}

}  // namespace

Graph::~Graph() {
  for (const auto& node : nodes) {
    ::nodes().remove(node.get());
    if (auto* child = std::get_if<GraphWork>(&node->work)) forget_graph(*child->graph);
  }
  for (const auto& [object, count] : user_objects) release_user_object(object, count);
}

GraphNode* Graph::add(Work work, std::vector<GraphNode*> dependencies) {
  if (auto* child = std::get_if<GraphWork>(&work)) child->graph->is_child = true;
  GraphNode contents{this, std::move(work), std::move(dependencies), nullptr, true, {}};
  auto node = std::make_shared<GraphNode>(std::move(contents));
  nodes.push_back(node);
  return ::nodes().add(node);
}

void Graph::remove(GraphNode* node) {
  for (const auto& other : nodes) {
    auto& dependencies = other->dependencies;
    dependencies.erase(std::remove(dependencies.begin(), dependencies.end(), node), dependencies.end());
  }
  if (auto* child = std::get_if<GraphWork>(&node->work)) forget_graph(*child->graph);
  ::nodes().remove(node);
  nodes.erase(std::find_if(nodes.begin(), nodes.end(), [&](const auto& entry) { return entry.get() == node; }));
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  std::unordered_map<const GraphNode*, GraphNode*> clones;
  for (const auto& node : nodes) {
    GraphNode* fresh = clones[node.get()] = copy->add(copy_of(node->work), {});
    fresh->original = node.get();
    fresh->enabled = node->enabled;
  }
  for (const auto& node : nodes) {
    for (const GraphNode* dependency : node->dependencies)
      clones[node.get()]->dependencies.push_back(clones[dependency]);
  }
  copy->user_objects = user_objects;
  for (const auto& [object, count] : user_objects) object->references += count;
  return copy;
}

GraphNode* Graph::find_clone(const GraphNode* original) const {
  for (const auto& node : nodes) {
    if (node->original == original) return node.get();
  }
  return nullptr;
}

std::vector<GraphNode*> Graph::in_order() const {
  std::unordered_map<const GraphNode*, size_t> missing;  // dependencies that are not in the order yet
  std::unordered_map<const GraphNode*, std::vector<GraphNode*>> dependents;
  std::vector<GraphNode*> order;
  for (const auto& node : nodes) {
    missing[node.get()] = node->dependencies.size();
    for (const GraphNode* dependency : node->dependencies) dependents[dependency].push_back(node.get());
    if (node->dependencies.empty()) order.push_back(node.get());
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (GraphNode* node : dependents[order[next]]) {
      if (--missing[node] == 0) order.push_back(node);
    }
  }
  for (const GraphNode* node : order) {
    if (const auto* child = std::get_if<GraphWork>(&node->work)) child->graph->in_order();
  }
  if (order.size() != nodes.size()) fail(hipErrorInvalidValue, "the graph's dependencies form a cycle");
  return order;
}

void GraphWork::run() const {
  for (const GraphNode* node : graph->in_order()) {
    if (node->enabled) ::run(node->work);
  }
}

GraphExec::GraphExec(const Graph& source, unsigned long long flags)
    : graph(source.clone()), order(graph->in_order()), flags(flags) {}

void GraphExec::run() const {
  for (const GraphNode* node : order) {
    if (node->enabled) ::run(node->work);
  }
}

GraphNode& GraphExec::own(const GraphNode* original) {
  GraphNode* node = graph->find_clone(original);
  if (!node) {
    fail(hipErrorInvalidValue, "node %p is not of the graph that the executable one was made from",
         static_cast<const void*>(original));
  }
  return *node;
}

std::shared_ptr<Graph> graph_of(hipGraph_t graph) { return graphs().get(graph); }

std::shared_ptr<GraphNode> node_of(hipGraphNode_t node) { return nodes().get(node); }

hipGraph_t handle_of(const std::shared_ptr<Graph>& graph) {
  if (!graph->has_handle) graphs().add(graph);
  graph->has_handle = true;
  return graph.get();
}

void forget_graph(Graph& graph) {
  if (!graph.has_handle) return;
  graph.has_handle = false;
  graphs().remove(&graph);
}

std::vector<GraphNode*> nodes_of(const Graph* graph, In<hipGraphNode_t> handles, size_t count) {
  std::vector<GraphNode*> found = handles.read(count, "the nodes");
  for (GraphNode* node : found) {
    if (node_of(node)->graph != graph) {
      fail(hipErrorInvalidValue, "node %p is one of another graph", static_cast<void*>(node));
    }
  }
  return found;
}
